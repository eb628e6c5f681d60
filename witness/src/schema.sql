-- State of a witness, layout 1. Run once, by `ledger witness init`.
--
-- Losing it is losing the witness: without its last head of a log it would
-- cosign a second history. The triggers refuse what no code here does.

PRAGMA application_id = 0x47574E53;
PRAGMA user_version = 1;

CREATE TABLE witness (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    name   TEXT NOT NULL,
    public TEXT NOT NULL
) STRICT;

-- The newest cosigned head of each log.
CREATE TABLE logs (
    origin     TEXT PRIMARY KEY,
    keys       TEXT NOT NULL,
    first_time INTEGER NOT NULL,
    time       INTEGER NOT NULL,
    size       INTEGER NOT NULL CHECK (size >= 0),
    root       BLOB NOT NULL CHECK (length(root) = 32)
) STRICT;

-- Every head that was cosigned, when it was first.
CREATE TABLE cosigned (
    id     INTEGER PRIMARY KEY,
    origin TEXT NOT NULL,
    size   INTEGER NOT NULL,
    time   INTEGER NOT NULL,
    note   TEXT NOT NULL,
    UNIQUE (origin, size)
) STRICT;

-- Signed heads that were not cosigned: what a log may have to explain.
CREATE TABLE refused (
    id     INTEGER PRIMARY KEY,
    origin TEXT NOT NULL,
    size   INTEGER NOT NULL,
    time   INTEGER NOT NULL,
    reason TEXT NOT NULL,
    note   TEXT NOT NULL
) STRICT;

CREATE INDEX refused_origin ON refused (origin, reason);

-- Behind a head of size 1, which the owner signs, the trainer's key is added.
CREATE TRIGGER logs_update BEFORE UPDATE ON logs
WHEN NEW.origin IS NOT OLD.origin OR NEW.first_time IS NOT OLD.first_time
  OR (NEW.keys IS NOT OLD.keys
      AND NOT (OLD.size <= 1 AND substr(NEW.keys, 1, length(OLD.keys) + 1) = OLD.keys || ' '))
  OR NEW.size < OLD.size OR (NEW.size = OLD.size AND NEW.root IS NOT OLD.root) OR NEW.time < OLD.time
BEGIN
    SELECT RAISE(ABORT, 'a log never shrinks, forks, changes keys or goes back in time');
END;

CREATE TRIGGER logs_delete BEFORE DELETE ON logs
BEGIN
    SELECT RAISE(ABORT, 'a witness forgets no log');
END;

CREATE TRIGGER cosigned_update BEFORE UPDATE ON cosigned
BEGIN
    SELECT RAISE(ABORT, 'cosigned is append-only');
END;

CREATE TRIGGER cosigned_delete BEFORE DELETE ON cosigned
BEGIN
    SELECT RAISE(ABORT, 'cosigned is append-only');
END;
