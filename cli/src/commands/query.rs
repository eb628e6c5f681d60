//! `ledger query`: one SELECT, within limits.

use std::time::Duration;

use ledger::query::{Cell, QueryLimits, QueryResult, query};
use serde_json::{Value, json};

use crate::arguments::QueryArguments;
use crate::failure::{Failure, OrFail};
use crate::output::{print, print_json, say};

pub(crate) fn run(arguments: &QueryArguments) -> Result<u8, Failure> {
    super::require_ledger(&arguments.ledger)?;
    let limits = QueryLimits {
        max_rows: arguments.max_rows,
        max_time: Duration::from_secs(arguments.max_time),
        ..QueryLimits::default()
    };
    let result = query(&arguments.ledger, &arguments.sql, &limits)
        .or_hint("read with one SELECT, for example: SELECT step, loss FROM steps ORDER BY seq")?;
    if arguments.json {
        let rows: Vec<Value> =
            result.rows.iter().map(|row| Value::Array(row.iter().map(Cell::to_json).collect())).collect();
        print_json("query", json!({"columns": result.columns, "rows": rows, "truncated": result.truncated}))?;
    } else {
        print_table(&result)?;
    }
    if result.truncated {
        say("Rows were left out; raise --max-rows or narrow the query.");
    }
    Ok(0)
}

/// Columns separated by tabs, which cells cannot hold.
fn print_table(result: &QueryResult) -> Result<(), Failure> {
    print(result.columns.join("\t"))?;
    for row in &result.rows {
        let cells: Vec<String> = row.iter().map(cell).collect();
        print(cells.join("\t"))?;
    }
    Ok(())
}

fn cell(cell: &Cell) -> String {
    let text = match cell.to_json() {
        Value::Null => "NULL".to_owned(),
        Value::String(text) => text,
        other => other.to_string(),
    };
    text.replace(['\t', '\n', '\r'], " ")
}
