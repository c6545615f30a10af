//! A node: its database, its Raft, and what the server needs of both.

use crate::Arguments;
use crate::age::{Confirmed, Heard};
use crate::faults::Faults;
use crate::identity::Identity;
use crate::network::Network;
use crate::receiving::Receiving;
use crate::records::{SCANS_MAX, SHARED_MAX};
use anyhow::Context;
use openraft::error::Fatal;
use openraft::{BasicNode, Config, Raft, RaftMetrics, SnapshotPolicy};
use parking_lot::Mutex;
use sapwood::{Database, EncryptionKey};
use sapwood_openraft::{
    BatchWriter, Batched, KvBatchConfig, KvCommand, KvMachine, ReadIndex, StateReader, Store,
};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};

/// The only group of this example.
const GROUP: u64 = 1;

/// How long the answer to a piece of a snapshot may take, in milliseconds: a day. That to the last piece comes when the whole state is installed, and the snapshot
/// would be sent from its beginning again otherwise, without end: so it is longer than any state takes that a node can have, some TiB. A machine that is gone is
/// noticed by TCP's keepalive.
const INSTALLATION_MS_MAX: u64 = 24 * 3600 * 1000;

/// Bytes of a piece of a snapshot: as many as a message of entries has, so that a slow link carries either.
const SNAPSHOT_CHUNK: u64 = 256 << 10;

/// Whether others can reach a node at an address, as far as that can be told: it has a host and a port, is not that of all addresses of a machine, and the port
/// is not 0.
pub fn is_somewhere(address: &str) -> bool {
    if let Ok(address) = address.parse::<SocketAddr>() {
        return !address.ip().is_unspecified() && address.port() != 0;
    }
    // What else is in a URL ends its host.
    let is_of_host = |c: char| !c.is_whitespace() && !"/\\?#@:[]".contains(c);
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    !host.is_empty() && host.chars().all(is_of_host) && port.parse::<u16>().is_ok_and(|port| port != 0)
}

/// Why Raft does not run any more.
pub fn end(metrics: &watch::Receiver<RaftMetrics<u64, BasicNode>>) -> Option<String> {
    // It says so when it ends by an error, and nothing when it panics.
    // Asked first: it says why before it goes.
    let has_ended = metrics.has_changed().is_err();
    let said = metrics.borrow().running_state.as_ref().err().map(ToString::to_string);
    said.or_else(|| has_ended.then(|| "a task of it has panicked: see the log".into()))
}

/// What Raft says of itself, and that it has ended if it did not come to say so.
pub fn with_end(metrics: &watch::Receiver<RaftMetrics<u64, BasicNode>>) -> RaftMetrics<u64, BasicNode> {
    let has_ended = metrics.has_changed().is_err();
    let said = metrics.borrow().clone();
    let running_state = match said.running_state {
        Ok(()) if has_ended => Err(Fatal::Panicked),
        said => said,
    };
    RaftMetrics { running_state, ..said }
}

/// Makes a new cluster of this node alone, of what it has. With the number of that and the old members it would be refused by those, and without the number
/// nodes of the old cluster could follow it: whatever fails, it has both or neither.
fn begin_anew(db: &Database, store: &Store, id: u64, address: &str) -> anyhow::Result<()> {
    let number = Identity::open(db)?.anew()?;
    Ok(store.restart_group_with::<KvBatchConfig>(GROUP, id, BasicNode::new(address), number)?)
}

/// All that a request needs.
pub struct Node {
    pub arguments: Arguments,
    /// Where others reach it.
    pub address: String,
    pub db: Database,
    pub raft: Raft<KvBatchConfig>,
    pub writer: BatchWriter<KvBatchConfig, KvMachine>,
    pub reads: ReadIndex<KvBatchConfig>,
    pub state: StateReader<KvBatchConfig>,
    pub faults: Arc<Faults>,
    pub network: Network,
    /// Scans that may be made now.
    pub scans: Arc<Semaphore>,
    /// On the leader: when a majority last confirmed it.
    pub confirmed: Confirmed,
    /// What the leader has said is committed, and when.
    pub heard: Heard,
    /// Snapshots that could not be written here.
    pub receiving: Receiving,
    /// Nodes that are being added by a request.
    pub adding: Mutex<BTreeSet<u64>>,
}

impl Node {
    pub async fn start(arguments: Arguments) -> anyhow::Result<Arc<Self>> {
        let address = arguments.address.clone().unwrap_or_else(|| arguments.listen.to_string());
        anyhow::ensure!(
            is_somewhere(&address),
            "others cannot reach this node at {address}: say where, with --address"
        );
        let mut builder = Database::builder().memory(arguments.memory << 20);
        if let Some(path) = &arguments.key_file {
            builder = builder.encryption_key(EncryptionKey::from_file(path)?);
        }
        // It makes the directory, and those above it, durably: what is there already it takes to be so.
        let db = builder.open(arguments.dir.join("node.db"))?;
        let store = Store::open(&db, arguments.dir.join("snapshots"))?;
        if arguments.force_new_cluster {
            begin_anew(&db, &store, arguments.id, &address)?;
        }
        let identity = Arc::new(Identity::open(&db)?);
        let (log, machine) = store.group::<KvBatchConfig, _>(GROUP, Batched(KvMachine::new()))?;
        // Its vote and its log are those of this number, and of no other.
        let log = log.of_node(arguments.id)?.committed_without_sync();
        let state = machine.reader();

        let config = Config {
            cluster_name: "sapwood".into(),
            heartbeat_interval: arguments.heartbeat,
            election_timeout_min: arguments.heartbeat * 5,
            election_timeout_max: arguments.heartbeat * 10,
            install_snapshot_timeout: INSTALLATION_MS_MAX,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(arguments.snapshot_after),
            snapshot_max_chunk_size: SNAPSHOT_CHUNK,
            // While a node is sent a snapshot the next one may be made: what comes after the first must be there then, or the node is sent another.
            max_in_snapshot_log_to_keep: arguments.snapshot_after,
            ..Config::default()
        };
        let token = arguments.token_file.as_ref().map(|path| {
            let token =
                std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
            anyhow::ensure!(!token.trim().is_empty(), "{} is empty", path.display());
            Ok(Arc::from(token.trim()))
        });
        let mut client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
        // Without an authority that is named, none is trusted.
        let mut scheme = "http";
        if let Some(path) = &arguments.tls_ca {
            let pem = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
            client = client.tls_certs_only([reqwest::Certificate::from_pem(&pem)?]).https_only(true);
            scheme = "https";
        } else {
            client = client.tls_certs_only([]);
        }
        let faults = Arc::new(Faults::default());
        let (token, client) = (token.transpose()?, client.build()?);
        let rounds = Arc::default();
        let network = Network { client, scheme, token, faults: Arc::clone(&faults), identity, rounds };
        let config = Arc::new(config.validate()?);
        let raft = Raft::new(arguments.id, config, network.clone(), log, machine).await?;
        // Before it has said so, openraft's metrics are those of a node that has nothing.
        _ = raft.with_raft_state(|_| ()).await;
        let writer = BatchWriter::new(&raft, SHARED_MAX, KvCommand::log_bytes);
        let reads = ReadIndex::new(&raft);
        let confirmed = Confirmed::watch(raft.metrics());
        Ok(Arc::new(Self {
            arguments,
            address,
            db,
            raft,
            writer,
            reads,
            state,
            faults,
            network,
            scans: Arc::new(Semaphore::new(SCANS_MAX)),
            confirmed,
            heard: Heard::default(),
            receiving: Receiving::default(),
            adding: Mutex::default(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::storage::RaftLogStorageExt;
    use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId, Membership, RaftLogReader};
    use sapwood::psync::{Fault, Filter, Repeat, Simulated, Volume};
    use std::path::Path;

    /// The numbers of the clusters that a node is of: as it has it, and as those of its members say. The old ones are three.
    const OLD: u64 = 7;
    const OLD_MEMBERS: [u64; 3] = [1, 2, 3];

    fn open(volume: &Simulated, directory: &Path) -> anyhow::Result<(Database, Store)> {
        let db = loop {
            let volume: Arc<dyn Volume> = Arc::new(volume.clone());
            match Database::builder().memory(4 << 20).background_threads(0).open_on(volume) {
                // The thread that has appended has it until a moment after its answer.
                Err(sapwood::Error::Locked { .. }) => std::thread::yield_now(),
                opened => break opened?,
            }
        };
        let store = Store::open(&db, directory)?;
        Ok((db, store))
    }

    /// Whether the cluster is the new one: by its number, and by its last membership.
    async fn is_new(volume: &Simulated, directory: &Path) -> (bool, bool) {
        let (db, store) = open(volume, directory).expect("opens");
        let cluster = Identity::open(&db).expect("opens").cluster();
        let group = store.group::<KvBatchConfig, _>(GROUP, Batched(KvMachine::new()));
        let entries = group.expect("a group").0.try_get_log_entries(..).await.expect("reads");
        let Some(EntryPayload::Membership(last)) = entries.last().map(|entry| &entry.payload) else {
            panic!("{entries:?}")
        };
        (cluster != Some(OLD), !last.voter_ids().eq(OLD_MEMBERS))
    }

    #[tokio::test]
    async fn a_new_cluster_has_its_number_and_its_member_or_neither() {
        let mut outcomes = BTreeSet::new();
        for (fault, is_lost) in [(Fault::PowerOff, true), (Fault::NoSpace, false), (Fault::Error, true)] {
            for change in 1.. {
                let (volume, directory) = (Simulated::new(change), tempfile::tempdir().expect("a directory"));
                let directory = directory.path();
                {
                    let (db, store) = open(&volume, directory).expect("opens");
                    assert!(Identity::open(&db).expect("opens").join(OLD).expect("keeps"));
                    let group = store.group::<KvBatchConfig, _>(GROUP, Batched(KvMachine::new()));
                    let members = Membership::new(vec![BTreeSet::from(OLD_MEMBERS)], None);
                    let log_id = LogId::new(CommittedLeaderId::new(1, 1), 0);
                    let entry = Entry { log_id, payload: EntryPayload::Membership(members) };
                    group.expect("a group").0.blocking_append([entry]).await.expect("appends");
                }
                volume.fail_nth(Filter::changes(), change, fault, Repeat::Once);
                let begun = open(&volume, directory)
                    .and_then(|(db, store)| begin_anew(&db, &store, 3, "10.0.0.4:7000"));
                let has_failed = volume.fired() > 0;
                volume.clear_faults();
                let volume = if is_lost { volume.power_loss(change) } else { volume };
                let (number, member) = is_new(&volume, directory).await;
                let story = format!("{fault:?} at change {change}: {begun:?}");
                assert_eq!(number, member, "{story}");
                assert!(member || begun.is_err(), "{story}");
                if !has_failed {
                    assert!(begun.is_ok(), "{story}");
                    break;
                }
                outcomes.insert((begun.is_ok(), member));
            }
        }
        assert!(outcomes.contains(&(false, false)) && outcomes.contains(&(false, true)), "{outcomes:?}");
    }

    #[test]
    fn an_end_is_noticed_whatever_was_said() {
        let (say, heard) = watch::channel(RaftMetrics::new_initial(1));
        assert_eq!(end(&heard), None);
        say.send(RaftMetrics { running_state: Err(Fatal::Stopped), ..RaftMetrics::new_initial(1) })
            .expect("it is heard");
        assert!(end(&heard).is_some());
        assert_eq!(with_end(&heard).running_state, Err(Fatal::Stopped));
        // As of a task that panics.
        say.send(RaftMetrics::new_initial(1)).expect("it is heard");
        assert_eq!(end(&heard), None);
        assert_eq!(with_end(&heard).running_state, Ok(()));
        drop(say);
        assert!(end(&heard).is_some_and(|end| end.contains("panicked")));
        assert_eq!(with_end(&heard).running_state, Err(Fatal::Panicked));
    }

    #[test]
    fn addresses_of_no_place_are_told() {
        let nowhere = [
            "0.0.0.0:7000",
            "[::]:7000",
            "10.0.0.1:0",
            "10.0.0.1",
            "node-1",
            "node-1:",
            ":7000",
            "node-1:0",
            "node-1:70000",
            "http://node-1:7000",
            "node-1:7000/",
            "node-1/:7000",
            "fe80::1:7000",
            "node 1:7000",
            "user@node-1:7000",
        ];
        for address in nowhere {
            assert!(!is_somewhere(address), "{address}");
        }
        for address in ["10.0.0.1:7000", "[fe80::1]:7000", "node-1:7000", "127.0.0.1:1"] {
            assert!(is_somewhere(address), "{address}");
        }
    }
}
