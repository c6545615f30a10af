//! Examples at the end of each `--help`.

pub(super) const LOAD: &str = "\
Forms:
  tsv    key TAB value, with \\t \\n \\r \\\\ and \\xHH for bytes that are no plain text
  csv    with a header. key,value: as they are. key_escaped,value_escaped: with the escapes of tsv.
         Any other: the value is the row as a JSON object, the key is --key-column or
         the first column
  jsonl  {\"key\":\"a\",\"value\":\"1\"}, or key_base64 and value_base64.
         Any other object: the value is the line itself, the key is --key-column or \"key\".
         Numbers are taken as they are written
  mdb    what mdb_dump and db_dump write; their databases become keyspaces of the same name

Examples:
  sapwood load ships.db ships.tsv
  sapwood load prices.db prices.csv --key-column sku
  mdb_dump -n old.mdb | sapwood load new.db - --format mdb
  zcat log.jsonl.gz | sapwood load log.db - --format jsonl --key-column id --skip-bad";

pub(super) const DUMP: &str = "\
csv comes with the header key_escaped,value_escaped; keys and values have the escapes of tsv.

Examples:
  sapwood dump ships.db > ships.tsv
  sapwood dump ships.db --keyspace harbours --format jsonl | jq .key
  sapwood dump ships.db --format mdb | mdb_load -n ships.mdb
  sapwood dump ships.db --format mdb | grep -v ^mapsize= | db_load ships.bdb";

pub(super) const GET: &str = "\
Examples:
  sapwood get ships.db beagle fram
  sapwood get ships.db 'a\\x00b' --hex
  sapwood get ships.db beagle fram --json
  sapwood get ships.db fram --keyspace photos --to fram.tif";

pub(super) const PUT: &str = "\
Examples:
  sapwood put ships.db fram 1892
  sapwood put ships.db 'two\\nlines' '\\xff\\x00' --keyspace odd
  sapwood put cache.db page 'on its way' --expires 1800          gone in half an hour
  sapwood put ships.db fram --keyspace photos --from fram.tif    however long it is";

pub(super) const DEL: &str = "\
Examples:
  sapwood del ships.db fram
  sapwood del ships.db 'a\\x00b' vega --keyspace odd
  sapwood del events.db --to 2026-01-01          all keys below this one
  sapwood del sessions.db --prefix nansen/";

pub(super) const BACKUP: &str = "\
TARGET is a directory, on another disk if it is to survive this one. It may hold any number of
backups; each copies what the target does not have yet. A backup that was interrupted is run again,
and goes on where it was. A database that another process has open is backed up as of what is
durable, while that process goes on writing.

Examples:
  sapwood backup ships.db /mnt/other/ships
  sapwood backup ships.db /mnt/other/ships --rate 50M --keep 7
  sapwood changes ships.db --keep 1GiB                             once: the log is kept, for this:
  sapwood backup ships.db /mnt/other/ships --archive-log
  sapwood backup ships.db --stream | ssh host 'cat > ships.backup'
  sapwood backup ships.db --stream | ssh host sapwood restore - ships-copy.db";

pub(super) const CHANGES: &str = "\
A database keeps changes if it was told to, here or by the program that writes it
(Builder::keep_changes), from then on. Each line has the position after it, which --since takes; the
last one is told on standard error. That of a database that another process has open is for that
process to read (Database::changes).

Examples:
  sapwood changes ships.db --keep 1GiB
  sapwood changes ships.db | jq 'select(.operations | length > 0)'
  sapwood changes ships.db --since 0f9c2d5e8a7b46139c0d1e2f3a4b5c6d-1820-2";

pub(super) const BACKUPS: &str = "\
Examples:
  sapwood backups /mnt/other/ships
  sapwood backups /mnt/other/ships --json | jq .[-1].number
  sapwood backups /mnt/other/ships --remove 1 --remove 2";

pub(super) const RESTORE: &str = "\
All bytes are checked. DB must be new or empty, and becomes a database with the last step: a restore
that was interrupted is run again. The copy has an id of its own, and can be backed up to the same
target without copying what it was made of.

Examples:
  sapwood restore /mnt/other/ships ships.db              the newest
  sapwood restore /mnt/other/ships old.db --number 3
  sapwood restore /mnt/other/ships old.db --to \"20min ago\"    a moment, if --archive-log was given
  sapwood restore ships.backup ships.db                  a file with a stream
  ssh host sapwood backup ships.db --stream | sapwood restore - ships.db";

pub(super) const REPAIR: &str = "\
Nothing in DB is changed. NEW must be new or empty, and becomes a database with the last step. It
has all that can be read, in its keyspaces, and `sapwood check` finds it sound. What may be lost is
listed by keyspace and range of keys: \"missing\", or \"older\", where records may be as they once
were. Copy DB first if its disk is failing, and restore a backup instead if there is one that is
new enough.
Exit code 0 if nothing is lost, 1 if something may be, 3 if there is no new database.

Examples:
  sapwood repair ships.db repaired.db
  sapwood repair ships.db repaired.db --json > lost.json
  sapwood check repaired.db && mv ships.db damaged.db && mv repaired.db ships.db";

pub(super) const VERIFY: &str = "\
Reads everything and checks it, and writes nothing. Exit code 0 if it is whole, 1 if there is
damage, 3 if it could not be read.

Examples:
  sapwood verify /mnt/other/ships
  sapwood verify /mnt/other/ships --all
  sapwood verify ships.backup";

pub(super) const TOP: &str = "\
Examples:
  sapwood top ships.db
  sapwood top ships.db --interval 10 --json >> ships.jsonl
  sapwood top ships.db --once --json | jq .changes_per_second";

pub(super) const KEY_NEW: &str = "\
Examples:
  sapwood key new /media/stick/ships.key
  sapwood load ships.db ships.tsv --key-file /media/stick/ships.key     an encrypted database
  export SAPWOOD_KEY_FILE=/media/stick/ships.key                        for what follows";

pub(super) const KEY_CHANGE: &str = "\
Example:
  sapwood key new new.key
  sapwood key change ships.db --to new.key --key-file old.key
  sapwood compact ships.db --key-file new.key";

pub(super) const FIRST_SESSION: &str = "\
A first session:
  sapwood load ships.db ships.tsv        lines of  key TAB value
  sapwood get ships.db beagle fram
  sapwood scan ships.db --prefix b --limit 10
  sapwood stats ships.db
  sapwood check ships.db
  sapwood backup ships.db backups        copy it; the next time only what is new
  sapwood compact ships.db               after much was removed: give space back
  sapwood tour                           watch the store at work on real data

A database is a directory; `load` and `put` create it. Keys have 1 to 65536 bytes, of any kind.
What is no plain text is written as \\t \\n \\r \\\\ and \\xHH, in arguments and in the output.
`sapwood COMMAND --help` has more, with examples.

Exit codes: 0 fine; 1 not found, or damage found by check, repair, verify, restore or
backups; 2 usage; 3 I/O, bad input and all else, also damage that any other command meets;
130 interrupted.";
