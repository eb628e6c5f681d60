//! Appending entries: rows go into the database and are compared with what it
//! then holds, in one call.
//!
//! A call of sqlx costs two changes of threads, and every bound value an
//! allocation on each side, so the rows of a call are bound as one run of
//! bytes, from which SQLite takes them, and with which it compares what it
//! reads back from the table. Nothing here says what is hashed or signed.

use std::sync::LazyLock;

use sqlx::sqlite::{SqliteArguments, SqliteConnection};
use sqlx::{Arguments, Row as _};

use crate::tree::Hash;

/// Rows of one call; more gain nothing measurable.
const MAX_ROWS: usize = 128;

/// Bytes of entries of one call, but for a single larger entry: below what
/// allocators take from the system and give back each time (128 KiB in glibc).
const MAX_BYTES: usize = 96 << 10;

const IDEM_BYTES: usize = 16;
const LEAF_BYTES: usize = 32;

/// Decimal digits of a place; a call's bytes need six.
const PLACE_DIGITS: usize = 8;

/// A row to be inserted.
#[derive(Debug)]
pub(crate) struct NewRow {
    pub(crate) index: u64,
    pub(crate) idem: [u8; IDEM_BYTES],
    pub(crate) entry: Vec<u8>,
    pub(crate) leaf: Hash,
}

/// Why rows were not appended.
pub(super) enum AppendError {
    /// SQLite refused.
    Database(sqlx::Error),
    /// What is stored from this index on is not what was given.
    Differs(u64),
}

impl From<sqlx::Error> for AppendError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

/// Inserts rows, whose indices ascend by one, and compares every column of every
/// one of them with what the table then holds, within the caller's transaction.
pub(super) async fn append(connection: &mut SqliteConnection, rows: &[NewRow]) -> Result<(), AppendError> {
    let mut rest = rows;
    while let Some((first, _)) = rest.split_first() {
        let (chunk, later) = rest.split_at(num_rows_of_call(rest));
        let statements = STATEMENTS[chunk.len() - 1].as_str();
        let arguments = arguments(first.index, chunk).map_err(sqlx::Error::Encode)?;
        let row = sqlx::query_with(statements, arguments).fetch_one(&mut *connection).await?;
        let num_equal: i64 = row.try_get(0)?;
        if usize::try_from(num_equal) != Ok(chunk.len()) {
            return Err(AppendError::Differs(first.index));
        }
        rest = later;
    }
    Ok(())
}

fn num_rows_of_call(rows: &[NewRow]) -> usize {
    let mut num_bytes = 0;
    let fits = |row: &&NewRow| {
        num_bytes += row.entry.len();
        num_bytes <= MAX_BYTES
    };
    rows.iter().take(MAX_ROWS).take_while(fits).count().max(1)
}

/// The values of [`statements`].
fn arguments(first: u64, rows: &[NewRow]) -> Result<SqliteArguments, sqlx::error::BoxDynError> {
    let num_bytes = rows.iter().map(|row| IDEM_BYTES + LEAF_BYTES + row.entry.len()).sum();
    let mut bytes: Vec<u8> = Vec::with_capacity(num_bytes);
    rows.iter().for_each(|row| bytes.extend_from_slice(&row.idem));
    rows.iter().for_each(|row| bytes.extend_from_slice(&row.leaf));
    let mut places = Vec::with_capacity(rows.len() * 2 * PLACE_DIGITS);
    let mut arguments = SqliteArguments::default();
    arguments.reserve(rows.len() * 2 + 3, 0);
    for row in rows {
        // SQLite counts from 1.
        for number in [bytes.len() + 1, row.entry.len()] {
            places.extend_from_slice(&digits(number));
            arguments.add(i64::try_from(number)?)?;
        }
        bytes.extend_from_slice(&row.entry);
    }
    // An index that is too large is refused by the table's trigger.
    arguments.add(i64::try_from(first).unwrap_or(i64::MAX))?;
    arguments.add(bytes)?;
    arguments.add(places)?;
    Ok(arguments)
}

fn digits(mut number: usize) -> [u8; PLACE_DIGITS] {
    let mut digits = [b'0'; PLACE_DIGITS];
    for digit in digits.iter_mut().rev() {
        // Below ten.
        *digit += u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
    }
    digits
}

/// For 1 to [`MAX_ROWS`] rows: an INSERT, and a SELECT of how many rows are
/// stored as they were given.
static STATEMENTS: LazyLock<Vec<String>> = LazyLock::new(|| (1..=MAX_ROWS).map(statements).collect());

/// Place and length of each entry come first, one after the other. Then follow
/// the first index; the bytes, which are all keys, all leaf hashes and all
/// entries; and the same places and lengths as digits, for the row that is read
/// tells only its index. A value that is used more often than once is named by
/// its number among the values.
fn statements(num_rows: usize) -> String {
    let named = |position: usize| format!("${}", num_rows * 2 + position);
    let (first, bytes, places) = (named(1), named(2), named(3));
    let leaves = num_rows * IDEM_BYTES;
    let row = |row: usize| {
        let (idem, leaf) = (1 + row * IDEM_BYTES, 1 + leaves + row * LEAF_BYTES);
        format!(
            "({first}+{row},substr({bytes},{idem},{IDEM_BYTES}),substr({bytes},?,?),\
             substr({bytes},{leaf},{LEAF_BYTES}))"
        )
    };
    let values: Vec<String> = (0..num_rows).map(row).collect();
    let place = |start: usize| {
        let width = 2 * PLACE_DIGITS;
        format!("CAST(substr({places},{start}+{width}*(seq-{first}),{PLACE_DIGITS}) AS INTEGER)")
    };
    format!(
        "INSERT INTO entries (seq, idem, entry, leaf) VALUES {}; \
         SELECT count(*) FROM entries WHERE seq >= {first} \
         AND idem = substr({bytes},1+{IDEM_BYTES}*(seq-{first}),{IDEM_BYTES}) \
         AND leaf = substr({bytes},{}+{LEAF_BYTES}*(seq-{first}),{LEAF_BYTES}) \
         AND entry = substr({bytes},{},{})",
        values.join(","),
        1 + leaves,
        place(1),
        place(1 + PLACE_DIGITS),
    )
}

#[cfg(test)]
mod tests {
    use sqlx::{ConnectOptions, Connection};

    use super::*;
    use crate::tree::leaf_hash;

    const TABLE: &str = "CREATE TABLE entries (seq INTEGER PRIMARY KEY, idem BLOB NOT NULL UNIQUE, \
                         entry BLOB NOT NULL, leaf BLOB NOT NULL) STRICT";

    fn new_row(index: u64, num_bytes: usize) -> NewRow {
        let mut idem = [0; IDEM_BYTES];
        idem[..8].copy_from_slice(&index.to_be_bytes());
        let entry: Vec<u8> =
            (0..num_bytes).map(|at| u8::try_from((at + num_bytes) % 256).unwrap_or(0)).collect();
        NewRow { index, idem, leaf: leaf_hash(&entry), entry }
    }

    /// Appends to a table with this trigger, and gives what the table then holds.
    fn append_to(trigger: &'static str, rows: &[NewRow]) -> (Result<(), AppendError>, Vec<NewRow>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let options = sqlx::sqlite::SqliteConnectOptions::new().in_memory(true);
            let mut connection = options.connect().await.expect("in memory");
            sqlx::raw_sql(TABLE).execute(&mut connection).await.expect("a table");
            sqlx::raw_sql(trigger).execute(&mut connection).await.expect("a trigger");
            let result = append(&mut connection, rows).await;
            let query = sqlx::query("SELECT seq, idem, entry, leaf FROM entries ORDER BY seq");
            let stored = query.fetch_all(&mut connection).await.expect("rows");
            let stored = stored.iter().map(|row| NewRow {
                index: row.get::<i64, _>(0).unsigned_abs(),
                idem: row.get::<Vec<u8>, _>(1).try_into().expect("16 bytes"),
                entry: row.get(2),
                leaf: row.get::<Vec<u8>, _>(3).try_into().expect("32 bytes"),
            });
            let stored = stored.collect();
            connection.close().await.expect("closes");
            (result, stored)
        })
    }

    #[test]
    fn rows_of_every_number_and_size_are_stored_as_they_were_given() {
        let sizes = [2, 3, 64, 1200, 65_535, 9, 65_535, 30_000, 30_000, 30_000, 200];
        for num_rows in [0, 1, 2, 11, 127, 128, 129, 300] {
            let mut rows: Vec<NewRow> = Vec::new();
            for (index, size) in (0..num_rows).zip(sizes.iter().cycle()) {
                rows.push(new_row(index, *size));
            }
            let (result, stored) = append_to("SELECT 1", &rows);
            assert!(result.is_ok());
            let same = |left: &NewRow, right: &NewRow| {
                (left.index, left.idem, &left.entry, left.leaf)
                    == (right.index, right.idem, &right.entry, right.leaf)
            };
            assert_eq!(stored.len(), rows.len());
            assert!(stored.iter().zip(&rows).all(|(left, right)| same(left, right)), "{num_rows} rows");
        }
    }

    /// A table that stores something else stands for a store that does.
    #[test]
    fn a_row_that_is_stored_with_other_bytes_is_seen() {
        let rows: Vec<NewRow> = (0..300).map(|index| new_row(index, 400)).collect();
        let triggers = [
            "UPDATE entries SET entry = zeroblob(400) WHERE seq = 200",
            "UPDATE entries SET entry = substr(entry, 1, 399) WHERE seq = 200",
            "UPDATE entries SET entry = CAST(entry || x'00' AS BLOB) WHERE seq = 200",
            "UPDATE entries SET idem = randomblob(16) WHERE seq = 200",
            "UPDATE entries SET leaf = zeroblob(32) WHERE seq = 200",
            "DELETE FROM entries WHERE seq = 200",
            "UPDATE entries SET seq = 1000 WHERE seq = 200",
        ];
        for change in triggers {
            let trigger = format!(
                "CREATE TRIGGER change AFTER INSERT ON entries WHEN NEW.seq = 200 BEGIN {change}; END"
            );
            let (result, stored) = append_to(Box::leak(trigger.into_boxed_str()), &rows);
            assert!(stored.len() >= 200, "{change}: {} rows", stored.len());
            assert!(matches!(result, Err(AppendError::Differs(first)) if first <= 200), "{change}");
        }
    }

    #[test]
    fn what_sqlite_refuses_is_its_error() {
        let rows = [new_row(0, 10), new_row(1, 10), new_row(1, 11)];
        let (result, stored) = append_to("SELECT 1", &rows);
        assert!(matches!(result, Err(AppendError::Database(_))));
        assert_eq!(stored.len(), 0);
    }
}
