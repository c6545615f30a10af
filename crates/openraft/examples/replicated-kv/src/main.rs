//! `sapwood-node`: a node of a replicated key-value store, over HTTP.
//!
//! ```text
//! client ──▶ server ──▶ records ──▶ openraft ──▶ log and state on Sapwood
//!                │                     └──▶ network ──▶ the other nodes' servers (peers)
//!                └──▶ cluster: nodes come and go, status, metrics, backup; identity: which cluster it is
//! ```
//! See `docs/replication.md`.

mod age;
mod answers;
mod bodies;
mod cluster;
mod connections;
mod faults;
mod identity;
mod network;
mod node;
mod peers;
mod receiving;
mod records;
mod server;

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How long a node that ends waits for what it has begun, each time: longer than a database takes to close, and much less than the 90 seconds that systemd waits.
const CLOSING: Duration = Duration::from_secs(5);

/// The database's memory at most, in MiB: 16 TiB, more than machines have.
const MEMORY_MAX: u64 = 16 << 20;
/// Entries between snapshots, at most: those of a year with thousands of them a second. openraft adds them to an index.
const SNAPSHOT_AFTER_MAX: u64 = 1 << 38;
/// Milliseconds between heartbeats, at most: an hour, in which nobody would notice that the leader is gone.
const HEARTBEAT_MAX: u64 = 3600 * 1000;
/// Connections at most: with 10 KiB each they take 2.5 TiB. tokio counts to twice as many on machines of 32 bits, and further on others.
const CONNECTIONS_MAX: u64 = 1 << 28;

/// A node of a replicated key-value store.
#[derive(Clone, Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The number of this node: no other node of the cluster has it, or ever had it. The directory keeps it, and is refused with another.
    #[arg(long)]
    id: u64,
    /// Where it listens.
    #[arg(long)]
    listen: SocketAddr,
    /// Where others reach it, host and port (`10.0.0.1:7000`, `[fe80::1]:7000`, `node-1:7000`); where it listens, if nothing is said, which then must not be
    /// all addresses of this machine.
    #[arg(long)]
    address: Option<String>,
    /// Its directory, which is created: the database, and snapshots.
    #[arg(long)]
    dir: PathBuf,
    /// The memory of the database, in MiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(..=MEMORY_MAX))]
    memory: u64,
    /// A key file: the database is encrypted with it, and with it the snapshots, from its beginning on.
    #[arg(long)]
    key_file: Option<PathBuf>,
    /// A snapshot is made after so many entries, and the log is purged up to as many before it. More than are written while a snapshot is sent to a node and installed
    /// there, or that node never catches up.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=SNAPSHOT_AFTER_MAX))]
    snapshot_after: u64,
    /// Milliseconds after which a heartbeat is due (one is sent after 1.5 times as long). An election begins after 15 to 20 times as long without one.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=HEARTBEAT_MAX))]
    heartbeat: u64,
    /// Connections at most; more are closed at once. Each takes a file descriptor, of which a process has 1,024 if nobody says otherwise (`ulimit -n`), and the
    /// database needs some. Those of the other nodes count, and a quarter of the places, 64 at most, is for them alone.
    #[arg(long, default_value_t = 900, value_parser = RangedU64ValueParser::<usize>::new().range(1..=CONNECTIONS_MAX))]
    connections: usize,
    /// A file with a secret that every request must have, as `Authorization: Bearer …`.
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// The certificate of this node (PEM), for its address. With it all traffic is TLS.
    #[arg(long, requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate (PEM).
    #[arg(long, requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The authority that has signed the certificates of the nodes (PEM).
    #[arg(long, requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// A directory for backups, which `POST /backup` makes.
    #[arg(long)]
    backups: Option<PathBuf>,
    /// Makes a cluster of this node alone, of the state in its directory: after a restored backup, or when most nodes are lost
    /// for good, on the one with the newest log (docs/replication.md says which that is). Nodes of the old cluster must never come back.
    #[arg(long)]
    force_new_cluster: bool,
    /// For tests: `POST /faults` says which messages are lost.
    #[arg(long, hide = true)]
    faults: bool,
    /// For tests: reads do not ask whether the state is the newest. Tests of linearizability must notice.
    #[arg(long, hide = true)]
    wrong_reads: bool,
}

fn main() -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    // A line that cannot be written is not told of where lines cannot be written: that would panic, in a thread of the store.
    let lines = tracing_subscriber::fmt().with_env_filter(filter).log_internal_errors(false);
    lines.with_writer(std::io::stderr).init();
    let arguments = Arguments::parse();
    // Fails only if there is one already.
    _ = rustls::crypto::ring::default_provider().install_default();
    run(async {
        let node = node::Node::start(arguments).await?;
        server::serve(node).await
    })
}

/// Returns soon after the work is done: a backup, a snapshot that is built or one that is installed may go on for hours, with the lock of the database, and ends
/// with the process. What was acknowledged is durable by then.
fn run(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(CLOSING);
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn numbers_that_nothing_could_be_made_of_are_refused() {
        let parse = |option: &str, number: u64| {
            let arguments = ["sapwood-node", "--id=1", "--listen=127.0.0.1:7000", "--dir=node"];
            Arguments::try_parse_from(arguments.into_iter().chain([format!("--{option}={number}").as_str()]))
        };
        let bounds = [
            ("connections", 1, CONNECTIONS_MAX),
            ("memory", 0, MEMORY_MAX),
            ("snapshot-after", 1, SNAPSHOT_AFTER_MAX),
            ("heartbeat", 1, HEARTBEAT_MAX),
        ];
        for (option, least, most) in bounds {
            for number in [Some(most + 1), Some(u64::MAX), u64::checked_sub(least, 1)].into_iter().flatten() {
                let refused = parse(option, number).expect_err("it is refused").to_string();
                assert!(refused.contains(&format!("{least}..={most}")), "{refused}");
                assert!(refused.contains(option), "{refused}");
            }
            assert!(parse(option, least).is_ok() && parse(option, most).is_ok(), "{option}");
        }
        let most = parse("connections", CONNECTIONS_MAX).expect("it is taken").connections;
        connections::Connections::new(axum::Router::new(), most);
    }

    #[test]
    fn what_goes_on_in_the_background_does_not_keep_the_process() {
        let begin = Instant::now();
        let long = 12 * CLOSING;
        let work = async move {
            tokio::task::spawn_blocking(move || std::thread::sleep(long));
            anyhow::bail!("it is done")
        };
        assert_eq!(run(work).expect_err("it says so").to_string(), "it is done");
        assert!(begin.elapsed() < long / 2, "{:?}", begin.elapsed());
    }
}
