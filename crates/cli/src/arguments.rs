//! The command line.

use crate::format::Format;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use tracing_subscriber::filter::LevelFilter;

const LOAD: &str = "\
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

const DUMP: &str = "\
csv comes with the header key_escaped,value_escaped; keys and values have the escapes of tsv.

Examples:
  sapwood dump ships.db > ships.tsv
  sapwood dump ships.db --keyspace harbours --format jsonl | jq .key
  sapwood dump ships.db --format mdb | mdb_load -n ships.mdb
  sapwood dump ships.db --format mdb | grep -v ^mapsize= | db_load ships.bdb";

const GET: &str = "\
Examples:
  sapwood get ships.db beagle fram
  sapwood get ships.db 'a\\x00b' --hex
  sapwood get ships.db beagle fram --json
  sapwood get ships.db fram --keyspace photos --to fram.tif";

const PUT: &str = "\
Examples:
  sapwood put ships.db fram 1892
  sapwood put ships.db 'two\\nlines' '\\xff\\x00' --keyspace odd
  sapwood put cache.db page 'on its way' --expires 1800          gone in half an hour
  sapwood put ships.db fram --keyspace photos --from fram.tif    however long it is";

const DEL: &str = "\
Examples:
  sapwood del ships.db fram
  sapwood del ships.db 'a\\x00b' vega --keyspace odd
  sapwood del events.db --to 2026-01-01          all keys below this one
  sapwood del sessions.db --prefix nansen/";

const BACKUP: &str = "\
TARGET is a directory, on another disk if it is to survive this one. It may hold any number of
backups; each copies what the target does not have yet. A backup that was interrupted is run again,
and goes on where it was. A database that another process has open is backed up as of what is durable,
while that process goes on writing.

Examples:
  sapwood backup ships.db /mnt/other/ships
  sapwood backup ships.db /mnt/other/ships --rate 50M --keep 7
  sapwood backup ships.db --stream | ssh host 'cat > ships.backup'
  sapwood backup ships.db --stream | ssh host sapwood restore - ships-copy.db";

const CHANGES: &str = "\
A database keeps changes if it was told to, here or by the program that writes it
(Builder::keep_changes), from then on. Each line has the position after it, which --since takes; the
last one is told on standard error. That of a database that another process has open is for that
process to read (Database::changes).

Examples:
  sapwood changes ships.db --keep 1GiB
  sapwood changes ships.db | jq 'select(.operations)'
  sapwood changes ships.db --since 0f9c2d5e8a7b46139c0d1e2f3a4b5c6d-1820-2";

const BACKUPS: &str = "\
Examples:
  sapwood backups /mnt/other/ships
  sapwood backups /mnt/other/ships --json | jq .[-1].number
  sapwood backups /mnt/other/ships --remove 1 --remove 2";

const RESTORE: &str = "\
All bytes are checked. DB must be new or empty, and becomes a database with the last step: a restore
that was interrupted is run again. The copy has an id of its own, and can be backed up to the same
target without copying what it was made of.

Examples:
  sapwood restore /mnt/other/ships ships.db              the newest
  sapwood restore /mnt/other/ships old.db --number 3
  sapwood restore ships.backup ships.db                  a file with a stream
  ssh host sapwood backup ships.db --stream | sapwood restore - ships.db";

const REPAIR: &str = "\
Nothing in DB is changed. NEW must be new or empty, and becomes a database with the last step. It has
all that can be read, in its keyspaces, and `sapwood check` finds it sound. What may be lost is listed by
keyspace and range of keys: \"missing\", or \"older\", where records may be as they once were. Copy DB
first if its disk is failing, and restore a backup instead if there is one that is new enough.
Exit code 0 if nothing is lost, 1 if something may be, 3 if there is no new database.

Examples:
  sapwood repair ships.db repaired.db
  sapwood repair ships.db repaired.db --json > lost.json
  sapwood check repaired.db && mv ships.db damaged.db && mv repaired.db ships.db";

const VERIFY: &str = "\
Reads everything and checks it, and writes nothing. Exit code 0 if it is whole, 1 if there is damage,
3 if it could not be read.

Examples:
  sapwood verify /mnt/other/ships
  sapwood verify /mnt/other/ships --all
  sapwood verify ships.backup";

const KEY_NEW: &str = "\
Examples:
  sapwood key new /media/stick/ships.key
  sapwood load ships.db ships.tsv --key-file /media/stick/ships.key       an encrypted database
  export SAPWOOD_KEY_FILE=/media/stick/ships.key                          for all commands that follow";

const KEY_CHANGE: &str = "\
Example:
  sapwood key new new.key
  sapwood key change ships.db --to new.key --key-file old.key
  sapwood compact ships.db --key-file new.key";

const FIRST_SESSION: &str = "\
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

Exit codes: 0 fine, 1 not found or damage found, 2 usage, 3 I/O, bad input and all else,
130 interrupted.";

/// An ordered key-value store that uses all channels of your SSD at once.
#[derive(Debug, Parser)]
#[command(name = "sapwood", version, after_help = FIRST_SESSION, propagate_version = true)]
pub(crate) struct Arguments {
    /// Memory that the database may use, such as 64M or 2GiB
    #[arg(long, global = true, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub memory: u64,
    /// Wait so long for a database that another process has open; what only reads shows what is durable instead
    #[arg(long, global = true, value_name = "SECONDS", default_value = "0", value_parser = parse_seconds)]
    pub wait: Duration,
    /// File with the key of an encrypted database or backup; a database that is created with it is encrypted
    #[arg(long, global = true, value_name = "FILE", env = "SAPWOOD_KEY_FILE")]
    pub key_file: Option<PathBuf>,
    /// Tell on standard error what the store does: error, warn, info, or debug, with which each flush has a line
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log: Option<LevelFilter>,
    #[command(subcommand)]
    pub command: Command,
}

fn parse_size(text: &str) -> Result<u64, String> {
    parse_size::Config::new()
        .with_binary()
        .parse_size(text)
        .map_err(|error| format!("{error}; write for instance 256M or 1GiB"))
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "write a number of seconds, such as 30 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Load records from a file into a database, which is created if there is none
    ///
    /// Commits batches, and makes all of it durable at the end. Ctrl-C ends in order: what is loaded stays. A key that is
    /// there already gets the new value.
    #[command(after_help = LOAD)]
    Load(Load),
    /// Write all records of a database to standard output
    ///
    /// All of one moment, in key order, in a form that `load` reads. --format mdb writes all keyspaces, the others write one.
    #[command(after_help = DUMP)]
    Dump(Dump),
    /// Print the values of keys; several keys are read in parallel
    ///
    /// One value a line, in the order of the keys. Keys that are not found have no line, are named on standard error, and
    /// make the exit code 1; --json has a line for each key, with the value null if there is none.
    #[command(after_help = GET)]
    Get(Get),
    /// Set a key to a value, durably
    ///
    /// Creates the database and the keyspace if there are none. For many records use `load`.
    #[command(after_help = PUT)]
    Put(Put),
    /// Remove keys, durably
    ///
    /// All of them in one commit. Keys that were not there are named on standard error, and make the exit code 1. A range takes a
    /// moment, however many keys it has; their space comes back with the next flush or `compact`.
    #[command(after_help = DEL)]
    Del(Del),
    /// Drop a keyspace with all its records, durably
    ///
    /// Takes a moment, however many records there are; their space comes back before the command ends, unless it is interrupted.
    #[command(after_help = "Example:\n  sapwood drop ships.db harbours")]
    Drop(Drop),
    /// Print records in key order, as lines of key TAB value
    #[command(
        after_help = "Examples:\n  sapwood scan ships.db --prefix be\n  sapwood scan ships.db --from m --to n --reverse --limit 5\n  sapwood scan ships.db --count"
    )]
    Scan(Scan),
    /// Tell what a database holds and takes
    ///
    /// Counts of reads and writes are those of this command alone; they are of use to programs that embed the store.
    #[command(
        after_help = "Examples:\n  sapwood stats ships.db\n  sapwood stats ships.db --json | jq .space.live"
    )]
    Stats(Stats),
    /// Tell what a get of a key looks at, and what it reads for that
    ///
    /// Queue, block, log pieces and leaf in the order in which they are asked, each with what it knows, and whether it was cached or
    /// read. This command begins with an empty cache, so inner nodes are read too. Exit code 1 if the key is not there.
    #[command(
        after_help = "Examples:\n  sapwood explain ships.db fram\n  sapwood explain ships.db fram --json | jq .requests"
    )]
    Explain(Explain),
    /// Show the segments of the data file: where they lie, how much of each is live
    #[command(after_help = "Examples:\n  sapwood map ships.db\n  sapwood map ships.db --svg map.svg")]
    Map(Map),
    /// Print what was committed, in order, as lines of JSON
    #[command(after_help = CHANGES)]
    Changes(Changes),
    /// Read everything and verify it; lists all damage
    ///
    /// Changes nothing. Exit code 0 if the database is sound, 1 if there is damage, 3 if it could not be checked.
    #[command(after_help = "Example:\n  sapwood check ships.db && sapwood backup ships.db backups")]
    Check(Check),
    /// Make a new database of what can be read of a damaged one, and list what is lost
    #[command(after_help = REPAIR)]
    Repair(Repair),
    /// Copy a database to a directory of backups, or into a pipe
    #[command(after_help = BACKUP)]
    Backup(Backup),
    /// List the backups of a directory, and remove old ones
    #[command(after_help = BACKUPS)]
    Backups(Backups),
    /// Make a database of a backup
    #[command(after_help = RESTORE)]
    Restore(Restore),
    /// Check that a backup is whole
    #[command(after_help = VERIFY)]
    Verify(Verify),
    /// Make key files, and change the key of an encrypted database
    #[command(subcommand)]
    Key(Key),
    /// Take all changes from the log to the trees
    ///
    /// Makes the next opening faster, and frees the space of the log and of what was removed. Nothing is lost without it.
    #[command(after_help = "Example:\n  sapwood flush ships.db")]
    Flush(Flush),
    /// Flush, and take all changes in log areas to the leaves
    ///
    /// Frees the space of what was removed or replaced, and makes scans faster. Rewrites much of the data: for a quiet hour,
    /// after much was removed, or before the database is archived.
    #[command(after_help = "Example:\n  sapwood compact ships.db && cp -r ships.db archive/")]
    Compact(Compact),
    /// Measure what the disk gives, by request size and by how many requests are under way
    #[command(
        after_help = "Example:\n  sapwood probe . --plot disk.svg\n\nTakes about 15 seconds and a scratch file of 1 GiB, which is removed."
    )]
    Probe(Probe),
    /// Watch the store at work: probe the disk, load real data, read it alone and in parallel, survive a kill
    #[command(
        after_help = "Example:\n  sapwood tour --dir /mnt/fast-disk\n\nTakes about two minutes and 2 GiB of space, which is given back."
    )]
    Tour(Tour),
    /// Print a script that makes a shell complete this program's arguments
    #[command(
        after_help = "Examples:\n  sapwood completions bash > ~/.local/share/bash-completion/completions/sapwood\n  sapwood completions zsh > ~/.zfunc/_sapwood\n  sapwood completions fish > ~/.config/fish/completions/sapwood.fish"
    )]
    Completions(Completions),
    /// Write the manual pages of this program and its commands
    #[command(
        after_help = "Examples:\n  sapwood man | man -l -\n  sapwood man ~/.local/share/man/man1 && man sapwood-load"
    )]
    Man(Man),
}

#[derive(Debug, Args)]
pub(crate) struct Load {
    /// Directory of the database
    pub db: PathBuf,
    /// File to load, or - for standard input
    #[arg(default_value = "-")]
    pub file: PathBuf,
    /// Form of the records; guessed from the file's name unless told, and tsv at last
    #[arg(long)]
    pub format: Option<Format>,
    /// Keyspace to load into; "default", or what an mdb file says, unless told
    #[arg(long, short)]
    pub keyspace: Option<String>,
    /// csv and jsonl: which column is the key, by number (from 1) or name; the first one, or "key", unless told
    #[arg(long, value_name = "N|NAME")]
    pub key_column: Option<String>,
    /// Records in one commit
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub batch: u32,
    /// How durable each commit is before the next (all is durable at the end)
    #[arg(long, value_enum, default_value_t = Durability::Buffered)]
    pub durability: Durability,
    /// How keyspaces are compressed from now on: none, lz4, zstd or zstd-dictionary, the last two with a level if need be, as in zstd:9. New
    /// ones are not unless told, and others stay as they are
    #[arg(long, value_name = "CODEC[:LEVEL]", value_parser = parse_compression)]
    pub compression: Option<sapwood::Compression>,
    /// Go on after malformed records, and count them
    #[arg(long)]
    pub skip_bad: bool,
}

fn parse_compression(text: &str) -> Result<sapwood::Compression, String> {
    use sapwood::Compression;
    let (codec, level) = text.split_once(':').map_or((text, None), |(codec, level)| (codec, Some(level)));
    let level: Option<u8> = level.map(|level| level.parse().unwrap_or(0));
    if level.is_some_and(|level| !(1..=19).contains(&level)) {
        return Err("the level is a number from 1 to 19".to_owned());
    }
    match (codec, level) {
        ("none", None) => Ok(Compression::None),
        ("lz4", None) => Ok(Compression::Lz4),
        ("zstd", level) => Ok(Compression::Zstd { level: level.unwrap_or(3) }),
        ("zstd-dictionary", level) => Ok(Compression::ZstdDictionary { level: level.unwrap_or(3) }),
        ("none" | "lz4", Some(_)) => Err(format!("{codec} has no levels")),
        _ => Err("none, lz4, zstd, zstd:LEVEL, zstd-dictionary, or zstd-dictionary:LEVEL".to_owned()),
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Durability {
    /// Survives power loss at once
    Immediate,
    /// Survives the death of the program at once
    Buffered,
    /// Survives nothing before the end of the load
    None,
}

#[derive(Debug, Args)]
pub(crate) struct Dump {
    /// Directory of the database
    pub db: PathBuf,
    /// Form of the records
    #[arg(long, default_value = "tsv")]
    pub format: Format,
    /// Keyspace to dump; all of them (mdb), or "default", unless told
    #[arg(long, short)]
    pub keyspace: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// Directory of the database
    pub db: PathBuf,
    /// Keys; \t \n \r \\ and \xHH stand for the bytes that they name
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<String>,
    /// Keyspace
    #[arg(long, short, default_value = "default")]
    pub keyspace: String,
    /// Print values as hexadecimal digits
    #[arg(long, conflicts_with = "json")]
    pub hex: bool,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
    /// Write the value of the one key to this file, as it is; - for standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hex", "json"])]
    pub to: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Put {
    /// Directory of the database
    pub db: PathBuf,
    /// Key; \t \n \r \\ and \xHH stand for the bytes that they name
    pub key: String,
    /// Value, likewise
    #[arg(required_unless_present = "from")]
    pub value: Option<String>,
    /// The value is what this file has, however long; - for standard input. The keyspace is one of large values, and is created
    /// for them if there is none
    #[arg(long, value_name = "FILE", conflicts_with_all = ["value", "expires"])]
    pub from: Option<PathBuf>,
    /// Keyspace
    #[arg(long, short, default_value = "default")]
    pub keyspace: String,
    /// The record expires so long from now; the keyspace is created for that if there is none
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub expires: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct Del {
    /// Directory of the database
    pub db: PathBuf,
    /// Keys; \t \n \r \\ and \xHH stand for the bytes that they name
    #[arg(required_unless_present_any = ["prefix", "from", "to", "all"], value_name = "KEY")]
    pub keys: Vec<String>,
    /// All keys that begin so
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["keys", "from", "to", "all"])]
    pub prefix: Option<String>,
    /// All keys from this one on
    #[arg(long, value_name = "KEY", conflicts_with_all = ["keys", "all"])]
    pub from: Option<String>,
    /// All keys below this one
    #[arg(long, value_name = "KEY", conflicts_with_all = ["keys", "all"])]
    pub to: Option<String>,
    /// All keys of the keyspace
    #[arg(long, conflicts_with = "keys")]
    pub all: bool,
    /// Keyspace
    #[arg(long, short, default_value = "default")]
    pub keyspace: String,
}

#[derive(Debug, Args)]
pub(crate) struct Drop {
    /// Directory of the database
    pub db: PathBuf,
    /// Keyspace
    pub keyspace: String,
}

#[derive(Debug, Args)]
pub(crate) struct Scan {
    /// Directory of the database
    pub db: PathBuf,
    /// First key
    #[arg(long, value_name = "KEY")]
    pub from: Option<String>,
    /// Where to end; this key itself is left out
    #[arg(long, value_name = "KEY")]
    pub to: Option<String>,
    /// Only keys that begin so
    #[arg(long, conflicts_with_all = ["from", "to"])]
    pub prefix: Option<String>,
    /// From the upper end down
    #[arg(long)]
    pub reverse: bool,
    /// At most so many records
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Only count them
    #[arg(long)]
    pub count: bool,
    /// Keyspace
    #[arg(long, short, default_value = "default")]
    pub keyspace: String,
}

#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// Directory of the database
    pub db: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print metrics in the text format of Prometheus
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Directory of the database
    pub db: PathBuf,
    /// Key; \t \n \r \\ and \xHH stand for the bytes that they name
    pub key: String,
    /// Keyspace
    #[arg(long, short, default_value = "default")]
    pub keyspace: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Changes {
    /// Directory of the database
    pub db: PathBuf,
    /// Begin behind this position instead of the oldest that is kept
    #[arg(long, value_name = "POSITION")]
    pub since: Option<String>,
    /// Keep so much of the log from now on, at least 1 MiB; 0 to keep none. The database remembers it
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub keep: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Map {
    /// Directory of the database
    pub db: PathBuf,
    /// Draw them into this file: place, age, live part, log pieces
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "svg")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Directory for one file per command; the program's own page goes to standard output if there is none
    pub dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Directory of the database
    pub db: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Repair {
    /// Directory of the damaged database
    pub db: PathBuf,
    /// Directory of the new one
    pub new: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// Directory of the database
    pub db: PathBuf,
    /// Directory of the backups; created if there is none
    #[arg(required_unless_present = "stream", conflicts_with = "stream")]
    pub target: Option<PathBuf>,
    /// Copy at most so much a second, such as 50M
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub rate: Option<u64>,
    /// Write the backup to standard output, as one stream
    #[arg(long)]
    pub stream: bool,
    /// Remove all backups but the newest N afterwards
    #[arg(long, value_name = "N", conflicts_with = "stream", value_parser = clap::value_parser!(u64).range(1..))]
    pub keep: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Backups {
    /// Directory of the backups
    pub target: PathBuf,
    /// Remove the backup of this number, and what no other needs; may be given more than once
    #[arg(long, value_name = "NUMBER")]
    pub remove: Vec<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// Directory of the backups, a file with a stream, or - for a stream on standard input
    pub target: PathBuf,
    /// Directory of the new database
    pub db: PathBuf,
    /// Number of the backup; the newest, unless told
    #[arg(long, value_name = "NUMBER")]
    pub number: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Directory of the backups, a file with a stream, or - for a stream on standard input
    pub target: PathBuf,
    /// Number of the backup; the newest, unless told
    #[arg(long, value_name = "NUMBER")]
    pub number: Option<u64>,
    /// All backups of the directory
    #[arg(long, conflicts_with = "number")]
    pub all: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Key {
    /// Make a key file
    ///
    /// 64 random hexadecimal digits, which only you may read. Without it nothing of the database or its backups can be read: keep a copy
    /// elsewhere, and not beside the database.
    #[command(after_help = KEY_NEW)]
    New(KeyNew),
    /// Make another key that of an encrypted database
    ///
    /// At once; what is written from now on cannot be read by who had the old key and file. `compact` rewrites what was there. Backups
    /// of before open with the old key.
    #[command(after_help = KEY_CHANGE)]
    Change(KeyChange),
}

#[derive(Debug, Args)]
pub(crate) struct KeyNew {
    /// The file, which must not exist
    pub file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct KeyChange {
    /// Directory of the database
    pub db: PathBuf,
    /// File with the new key
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Flush {
    /// Directory of the database
    pub db: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Compact {
    /// Directory of the database
    pub db: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Probe {
    /// Directory on the disk to measure
    pub dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Draw the profile into this file
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Tour {
    /// Directory on the disk to use
    #[arg(long, value_name = "D", default_value = ".")]
    pub dir: PathBuf,
    /// What the part that gets killed runs
    #[arg(long, hide = true)]
    pub write_until_killed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
        assert_eq!(parse_size("64M"), Ok(64 << 20));
        assert!(parse_size("much").is_err());
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(
            parse_seconds("-1").is_err() && parse_seconds("NaN").is_err() && parse_seconds("1e99").is_err()
        );
    }
}
