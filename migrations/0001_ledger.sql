-- Ledger layout 1 (docs/FORMAT.md, "SQLite layout 1"). Run once, when a ledger
-- is created; never run against an existing one.
--
-- The triggers are a guard rail against mistakes. They are not evidence: who
-- can write the file can drop them. The Merkle tree and its signed heads are.
-- They need `PRAGMA recursive_triggers = ON`, or REPLACE would delete rows
-- without firing the DELETE triggers; the INSERT triggers refuse it as well.

PRAGMA application_id = 0x4754524C;
PRAGMA user_version = 1;

CREATE TABLE entries (
    seq   INTEGER PRIMARY KEY CHECK (seq >= 0),
    idem  BLOB NOT NULL UNIQUE CHECK (length(idem) = 16),
    entry BLOB NOT NULL CHECK (length(entry) BETWEEN 2 AND 65535),
    leaf  BLOB NOT NULL CHECK (length(leaf) = 32)
) STRICT;

CREATE TABLE heads (
    size INTEGER PRIMARY KEY CHECK (size >= 0),
    note TEXT NOT NULL
) STRICT;

CREATE TABLE artifacts (
    digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32),
    bytes  BLOB NOT NULL
) STRICT;

CREATE TRIGGER entries_insert BEFORE INSERT ON entries
WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), -1) + 1 FROM entries)
  OR EXISTS (SELECT 1 FROM entries WHERE idem = NEW.idem)
BEGIN
    SELECT RAISE(ABORT, 'entries is append-only: seq must be the next index and idem new');
END;

CREATE TRIGGER entries_update BEFORE UPDATE ON entries
BEGIN
    SELECT RAISE(ABORT, 'entries is append-only: no UPDATE');
END;

CREATE TRIGGER entries_delete BEFORE DELETE ON entries
BEGIN
    SELECT RAISE(ABORT, 'entries is append-only: no DELETE');
END;

CREATE TRIGGER heads_insert BEFORE INSERT ON heads
WHEN NEW.size <= (SELECT coalesce(max(size), -1) FROM heads)
  OR NEW.size > (SELECT coalesce(max(seq), -1) + 1 FROM entries)
BEGIN
    SELECT RAISE(ABORT, 'heads is append-only: size must grow and not exceed the entries');
END;

CREATE TRIGGER heads_update BEFORE UPDATE ON heads
BEGIN
    SELECT RAISE(ABORT, 'heads is append-only: no UPDATE');
END;

CREATE TRIGGER heads_delete BEFORE DELETE ON heads
BEGIN
    SELECT RAISE(ABORT, 'heads is append-only: no DELETE');
END;

CREATE TRIGGER artifacts_insert BEFORE INSERT ON artifacts
WHEN EXISTS (SELECT 1 FROM artifacts WHERE digest = NEW.digest)
BEGIN
    SELECT RAISE(ABORT, 'artifacts is append-only: digest must be new');
END;

CREATE TRIGGER artifacts_update BEFORE UPDATE ON artifacts
BEGIN
    SELECT RAISE(ABORT, 'artifacts is append-only: no UPDATE');
END;

CREATE TRIGGER artifacts_delete BEFORE DELETE ON artifacts
BEGIN
    SELECT RAISE(ABORT, 'artifacts is append-only: no DELETE');
END;
