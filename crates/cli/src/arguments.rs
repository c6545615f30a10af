//! The command line.

mod examples;

use crate::format::Format;
use clap::{Args, Parser, Subcommand, ValueEnum};
use examples::*;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use tracing_subscriber::filter::LevelFilter;

/// An ordered key-value store that uses all channels of your SSD at once.
#[derive(Debug, Parser)]
#[command(name = "sapwood", version, after_help = FIRST_SESSION, propagate_version = true)]
pub(crate) struct Arguments {
    /// Memory that DB may use, such as 64M or 2GiB; of no use to commands that open none
    #[arg(long, global = true, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub memory: u64,
    /// Wait so long for a database that another process has open; what only reads shows what is durable instead
    #[arg(long, global = true, value_name = "SECONDS", default_value = "0", value_parser = parse_seconds)]
    pub wait: Duration,
    /// File with the key of an encrypted database or backup; a database that is created with it is encrypted [env: SAPWOOD_KEY_FILE]
    #[arg(long, global = true, value_name = "FILE")]
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

fn parse_rate(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("it would never end; without --rate there is no limit".to_owned()),
        rate => Ok(rate),
    }
}

fn parse_moment(text: &str) -> Result<SystemTime, String> {
    if let Some(ago) = text.strip_suffix("ago") {
        let ago = humantime::parse_duration(ago.trim()).map_err(|error| error.to_string())?;
        return SystemTime::now().checked_sub(ago).ok_or_else(|| "that is too long ago".to_owned());
    }
    humantime::parse_rfc3339_weak(text)
        .map_err(|error| format!("{error}; write for instance 2026-11-27T10:30:00Z, or \"20min ago\""))
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "write a number of seconds, such as 30 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_seconds(text)?;
    if interval < Duration::from_millis(10) { Err("at least 0.01".to_owned()) } else { Ok(interval) }
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
    /// It is gone in a moment, however many records there are; then their space is given back, and the database compacted as `compact`
    /// does it, which can be interrupted.
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
    /// Watch a database that a process writes: rates, space, what waits
    ///
    /// Follows the process by its files, so that nothing waits for this: what is durable is counted. Processor, memory and device are
    /// what the operating system says of the process (Linux, and for the device the same user). Ctrl-C ends it.
    #[command(after_help = TOP)]
    Top(Top),
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
    ///
    /// Opens the database as its writer does, and so changes its files as any opening for writing: it needs a place where that is possible.
    #[command(after_help = CHANGES)]
    Changes(Changes),
    /// Read everything and verify it; lists the damage
    ///
    /// Changes nothing. Up to a thousand places are listed of the trees, of each other kind of file and of large values, and all are counted; what
    /// lies below an inner node that is damaged or cannot be read is not reached, and its line says so. Exit code 0 if the database is sound, 1 if there is damage, 3 if it could not be checked.
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
    /// ones by lz4 unless told, and others stay as they are
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
pub(crate) struct Top {
    /// Directory of the database
    pub db: PathBuf,
    /// Time between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub interval: Duration,
    /// Look once, after one interval
    #[arg(long)]
    pub once: bool,
    /// A line of JSON for each look
    #[arg(long)]
    pub json: bool,
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
    /// Draw them into this file: place, age, live part, log pieces; - for standard output
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
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub rate: Option<u64>,
    /// Write the backup to standard output, as one stream
    #[arg(long)]
    pub stream: bool,
    /// Archive the log as well: then each moment between two such backups can be restored
    #[arg(long, conflicts_with = "stream")]
    pub archive_log: bool,
    /// Remove all backups of this database but the newest N afterwards
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
    #[arg(long, conflicts_with = "remove")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FromBackup {
    /// Directory of the backups, a file or pipe with a stream, or - for a stream on standard input
    pub target: PathBuf,
    /// Number of the backup; the newest, unless told. Of a moment between backups: the one to begin with, before that moment
    #[arg(long, value_name = "NUMBER")]
    pub number: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Restore {
    #[command(flatten)]
    pub from: FromBackup,
    /// Directory of the new database
    pub db: PathBuf,
    /// A moment between backups whose log was archived: 2026-11-27T10:30:00Z, "2026-11-27 10:30:00" (UTC), or "20min ago"
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    pub to: Option<SystemTime>,
    /// The same, up to the operation of this number
    #[arg(long, value_name = "NUMBER", conflicts_with = "to")]
    pub to_sequence: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub from: FromBackup,
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
    /// Draw the profile into this file; - for standard output, instead of all else
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
        // Longer lines are broken once more, with a word to a line.
        let mut commands = vec![Arguments::command()];
        while let Some(command) = commands.pop() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let longest = help.lines().map(str::len).max().unwrap_or(0);
            assert!(
                longest <= 100 || command.get_name() == "completions",
                "{}: {longest}",
                command.get_name()
            );
            commands.extend(command.get_subcommands().cloned());
        }
        assert_eq!(parse_size("64M"), Ok(64 << 20));
        assert!(parse_size("much").is_err());
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(
            parse_seconds("-1").is_err() && parse_seconds("NaN").is_err() && parse_seconds("1e99").is_err()
        );
    }
}
