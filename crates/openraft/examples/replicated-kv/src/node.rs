//! A node: its database, its Raft, and what the server needs of both.

use crate::Arguments;
use crate::age::Confirmed;
use crate::faults::Faults;
use crate::network::Network;
use crate::records::COMMAND_MAX;
use anyhow::Context;
use openraft::{BasicNode, Config, LogId, Raft, SnapshotPolicy};
use parking_lot::Mutex;
use sapwood::{Database, EncryptionKey};
use sapwood_openraft::{
    BatchWriter, Batched, KvBatchConfig, KvCommand, KvMachine, ReadIndex, StateReader, Store,
};
use std::sync::Arc;
use std::time::Instant;

/// The only group of this example.
const GROUP: u64 = 1;

/// How long the answer to a piece of a snapshot may take. That to the last piece comes when the whole state is installed, and the snapshot would be
/// sent from its beginning again otherwise. A machine that is gone is noticed by TCP's keepalive.
const INSTALLATION_MS_MAX: u64 = 600_000;

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
    /// On the leader: when a majority last confirmed it.
    pub confirmed: Confirmed,
    /// When the leader last said what is committed, and what that was.
    pub heard: Mutex<Option<(Instant, Option<LogId<u64>>)>>,
}

impl Node {
    pub async fn start(arguments: Arguments) -> anyhow::Result<Arc<Self>> {
        let address = arguments.address.clone().unwrap_or_else(|| arguments.listen.to_string());
        let mut builder = Database::builder().memory(arguments.memory << 20);
        if let Some(path) = &arguments.key_file {
            builder = builder.encryption_key(EncryptionKey::from_file(path)?);
        }
        // It makes the directory, and those above it, durably: what is there already it takes to be so.
        let db = builder.open(arguments.dir.join("node.db"))?;
        let store = Store::open(&db, arguments.dir.join("snapshots"))?;
        if arguments.force_new_cluster {
            let node = BasicNode::new(address.clone());
            store.restart_group::<KvBatchConfig>(GROUP, arguments.id, node)?;
        }
        let (log, machine) = store.group::<KvBatchConfig, _>(GROUP, Batched(KvMachine::new()))?;
        let log = log.committed_without_sync();
        let state = machine.reader();

        let config = Config {
            cluster_name: "sapwood".into(),
            heartbeat_interval: arguments.heartbeat,
            election_timeout_min: arguments.heartbeat * 5,
            election_timeout_max: arguments.heartbeat * 10,
            install_snapshot_timeout: INSTALLATION_MS_MAX,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(arguments.snapshot_after),
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
        let network = Network { client, scheme, token, faults: Arc::clone(&faults) };
        let config = Arc::new(config.validate()?);
        let raft = Raft::new(arguments.id, config, network.clone(), log, machine).await?;
        let writer = BatchWriter::new(&raft, COMMAND_MAX, KvCommand::log_bytes);
        let reads = ReadIndex::new(&raft);
        let confirmed = Confirmed::watch(raft.metrics());
        let heard = Mutex::new(None);
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
            confirmed,
            heard,
        }))
    }
}
