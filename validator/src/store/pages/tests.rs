use std::fs;
use std::os::unix::fs::FileExt;

use rusqlite::{Connection, OpenFlags, params};
use tempfile::TempDir;

use super::*;
use crate::rule::Sink;
use crate::store::{Access, RowsEnd, Store};
use crate::tree::leaf_hash;

const LAYOUT_1: &str = include_str!("../../../../migrations/0001_ledger.sql");

/// Pages as small as SQLite has them, so that a few rows make trees of three
/// levels, chains of pages and free pages.
const PAGE_SIZE: u64 = 512;

/// Number, key, entry and leaf hash of a row.
type Columns = (i64, Vec<u8>, Vec<u8>, Vec<u8>);

struct Ledger {
    folder: TempDir,
}

fn idem(number: u64) -> [u8; 16] {
    let hash = blake3::hash(&number.to_le_bytes());
    *hash.as_bytes().first_chunk().expect("32 bytes")
}

impl Ledger {
    fn new(num_entries: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let ledger = Self { folder };
        let connection = Connection::open(ledger.path()).expect("a new file");
        connection.execute_batch(&format!("PRAGMA page_size = {PAGE_SIZE};")).expect("before any table");
        connection.execute_batch(LAYOUT_1).expect("layout 1");
        // A table that is dropped again leaves free pages.
        connection.execute_batch("CREATE TABLE other (bytes BLOB)").expect("a table");
        connection.execute("INSERT INTO other VALUES (zeroblob(4000))", []).expect("a row");
        for seq in 0..num_entries {
            // Short ones, and some that go on over one or several pages.
            let length = [40, 200, 480, 900, 2600][usize::try_from(seq % 5).expect("small")];
            let entry: Vec<u8> = (0..length).map(|at: u32| at.to_le_bytes()[0] ^ 0x5a).collect();
            connection
                .execute(
                    "INSERT INTO entries VALUES (?1, ?2, ?3, ?4)",
                    params![i64::try_from(seq).expect("small"), idem(seq), entry, leaf_hash(&entry)],
                )
                .expect("a row");
        }
        if num_entries > 0 {
            connection.execute("INSERT INTO heads VALUES (1, 'a note')", []).expect("a row");
        }
        for bytes in [vec![1u8; 10], vec![2; 3000]] {
            let digest = *blake3::hash(&bytes).as_bytes();
            connection
                .execute("INSERT INTO artifacts VALUES (?1, ?2)", params![digest, bytes])
                .expect("a row");
        }
        connection.execute_batch("DROP TABLE other").expect("the table");
        drop(connection);
        ledger
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("run.db")
    }

    fn open(&self, access: Access) -> Option<Store> {
        let mut sink = Sink::new(&crate::rules::gl001_store_layout::INFO);
        Store::open(&self.path(), access, &mut sink).expect("a file").filter(|_| sink.num_errors() == 0)
    }

    fn rows(&self, access: Access) -> Option<Vec<Columns>> {
        let store = self.open(access)?;
        let mut rows = Vec::new();
        let end = store.for_each_row(&mut |row| {
            rows.push((row.seq, row.idem.to_vec(), row.entry.to_vec(), row.leaf.to_vec()));
        });
        matches!(end, RowsEnd::Complete).then_some(rows)
    }

    /// Whether the pages are accepted to their end.
    fn is_accepted(&self) -> bool {
        let Some(store) = self.open(Access::Pages) else { return false };
        let is_by_pages = matches!(store.reading, crate::store::Reading::Pages(_));
        is_by_pages && matches!(store.for_each_row(&mut |_| {}), RowsEnd::Complete)
    }

    /// What SQLite's own check says.
    fn is_in_order(&self) -> bool {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let answer = Connection::open_with_flags(self.path(), flags).and_then(|connection| {
            connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get::<_, String>(0))
        });
        answer.is_ok_and(|line| line == "ok")
    }

    fn change(&self, sql: &str) {
        Connection::open(self.path()).and_then(|connection| connection.execute_batch(sql)).expect("it acts");
    }
}

#[test]
fn rows_are_those_that_sqlite_reads() {
    for num_entries in [0, 1, 2, 7, 400] {
        let ledger = Ledger::new(num_entries);
        assert!(ledger.is_accepted(), "{num_entries} entries");
        let rows = ledger.rows(Access::Pages).expect("rows");
        assert_eq!(rows.len() as u64, num_entries);
        assert_eq!(Some(rows), ledger.rows(Access::InPlace));
        let store = ledger.open(Access::Pages).expect("a store");
        for _ in 0..2 {
            let mut num_rows = 0;
            assert!(matches!(store.for_each_row(&mut |_| num_rows += 1), RowsEnd::Complete));
            assert_eq!(num_rows, num_entries, "rows can be read again");
        }
    }
}

/// What no byte of it alone shows: rows of another form, and trees that disagree
/// though each is in order.
#[test]
fn rows_of_another_form_and_trees_that_disagree_are_refused() {
    let is_accepted = |sql: &str| {
        let ledger = Ledger::new(60);
        let freely = "DROP TRIGGER entries_update; DROP TRIGGER entries_delete; DROP TRIGGER entries_insert; \
                      PRAGMA ignore_check_constraints = ON; PRAGMA writable_schema = ON;";
        ledger.change(&format!("{freely} {sql}"));
        ledger.change(&restore_triggers());
        ledger.is_accepted()
    };
    assert!(is_accepted("UPDATE entries SET leaf = zeroblob(32) WHERE seq = 30"), "the control");
    assert!(!is_accepted("UPDATE entries SET leaf = x'00' WHERE seq = 30"));
    assert!(!is_accepted("UPDATE entries SET idem = zeroblob(15) WHERE seq = 30"));
    assert!(!is_accepted("UPDATE entries SET entry = zeroblob(70000) WHERE seq = 30"));
    assert!(!is_accepted("UPDATE entries SET seq = -5 WHERE seq = 30"));
    assert!(!is_accepted("UPDATE sqlite_schema SET rootpage = 3 WHERE name = 'heads'"));
    // An index of fewer, of other or of more rows in its place.
    let swap = |rows: &str| {
        format!(
            "CREATE TABLE other (idem BLOB UNIQUE); INSERT INTO other (rowid, idem) {rows}; \
             UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = \
             'sqlite_autoindex_other_1') WHERE name = 'sqlite_autoindex_entries_1'; \
             DELETE FROM sqlite_schema WHERE tbl_name = 'other'"
        )
    };
    for rows in [
        "SELECT seq, idem FROM entries WHERE seq < 59",
        "SELECT seq, CASE seq WHEN 7 THEN zeroblob(16) ELSE idem END FROM entries",
        "SELECT 59 - seq, idem FROM entries",
    ] {
        assert!(!is_accepted(&swap(rows)), "{rows}");
    }
}

/// Every trigger of layout 1 that was dropped, as the schema has it.
fn restore_triggers() -> String {
    let pieces = LAYOUT_1.split("CREATE TRIGGER ").filter(|piece| piece.starts_with("entries_"));
    pieces
        .map(|piece| {
            format!("CREATE TRIGGER {}", piece.split("END;").next().expect("a piece").to_owned() + "END;")
        })
        .collect()
}

/// Root pages of a ledger that is in order.
fn roots(ledger: &Ledger) -> Roots {
    let connection = Connection::open(ledger.path()).expect("a file");
    let root = |name: &str| {
        let query = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
        connection.query_row(query, [name], |row| row.get(0)).expect("a tree")
    };
    Roots {
        artifacts: root("artifacts"),
        artifacts_index: root("sqlite_autoindex_artifacts_1"),
        entries: root("entries"),
        entries_index: root("sqlite_autoindex_entries_1"),
        heads: root("heads"),
    }
}

/// The whole of what the reading promises: what it accepts, SQLite accepts, with
/// the same rows.
#[test]
fn whatever_byte_is_changed_sqlite_accepts_what_is_accepted() {
    let ledger = Ledger::new(24);
    let roots = roots(&ledger);
    let original = ledger.rows(Access::InPlace).expect("rows");
    let num_bytes = fs::metadata(ledger.path()).expect("a file").len();
    let file = fs::OpenOptions::new().read(true).write(true).open(ledger.path()).expect("a file");
    let (mut num_accepted, mut num_refused, mut num_stricter) = (0, 0, 0);
    for offset in 0..num_bytes {
        // What decides is at the beginning of pages and of cells; of what cells hold
        // a part is enough.
        if offset % PAGE_SIZE > 64 && offset % 9 != 0 {
            continue;
        }
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).expect("within the file");
        let mask = [1, 0x80, 0x13, 0xff][usize::try_from(offset / 9 % 4).expect("small")];
        file.write_all_at(&[byte[0] ^ mask], offset).expect("within the file");
        let quick = QuickPages::open(&ledger.path(), roots);
        let is_possible = quick.is_ok_and(|mut pages| pages.for_each_entry(&mut |_| {}).is_ok());
        // The schema, which says where the trees are, is SQLite's to read.
        if is_possible && ledger.is_accepted() {
            assert!(ledger.is_in_order(), "byte {offset} ^ {mask:#x}: accepted, and SQLite finds it damaged");
            if offset % 3 == 0 {
                let rows = ledger.rows(Access::Pages);
                assert_eq!(rows, ledger.rows(Access::InPlace), "byte {offset} ^ {mask:#x}: other rows");
            }
            num_accepted += 1;
        } else {
            num_refused += 1;
            num_stricter += u64::from(offset % 8 == 0 && ledger.is_in_order());
        }
        file.write_all_at(&byte, offset).expect("within the file");
    }
    assert_eq!(ledger.rows(Access::Pages), Some(original), "every byte is put back");
    assert!(num_accepted > 300 && num_refused > 300, "{num_accepted} accepted, {num_refused} refused");
    // Being stricter than SQLite costs time and nothing else, but should be rare.
    assert!(num_stricter * 8 < num_refused / 2, "{num_stricter} of {num_refused} / 8 were only unusual");
}
