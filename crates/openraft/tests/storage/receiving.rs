//! A snapshot that comes in chunks, of which any may be given up in its midst and sent again: the connection of a node that sends one breaks,
//! and the server drops whatever it was doing with it.

use crate::ground::{self, command, id, membership};
use openraft::error::{InstallSnapshotError, RPCError, RaftError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::storage::RaftStateMachine;
use openraft::{AnyError, BasicNode, Config, Raft, RaftSnapshotBuilder, Vote};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::psync::{Simulated, Volume};
use sapwood_openraft::{KvCommand, KvConfig, KvMachine, Store};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::AsyncReadExt;

/// Bytes of a chunk: several times what a thread once wrote at a time.
const CHUNK: usize = 1_000_000;

/// Reaches nobody.
struct Nobody;

type Answer<T, E = openraft::error::Infallible> = Result<T, RPCError<u64, BasicNode, RaftError<u64, E>>>;

fn unreachable() -> Unreachable {
    Unreachable::new(&AnyError::error("nobody is there"))
}

impl RaftNetwork<KvConfig> for Nobody {
    async fn append_entries(
        &mut self,
        _: AppendEntriesRequest<KvConfig>,
        _: RPCOption,
    ) -> Answer<AppendEntriesResponse<u64>> {
        Err(unreachable().into())
    }

    async fn install_snapshot(
        &mut self,
        _: InstallSnapshotRequest<KvConfig>,
        _: RPCOption,
    ) -> Answer<InstallSnapshotResponse<u64>, InstallSnapshotError> {
        Err(unreachable().into())
    }

    async fn vote(&mut self, _: VoteRequest<u64>, _: RPCOption) -> Answer<VoteResponse<u64>> {
        Err(unreachable().into())
    }
}

impl RaftNetworkFactory<KvConfig> for Nobody {
    type Network = Nobody;

    async fn new_client(&mut self, _: u64, _: &BasicNode) -> Nobody {
        Nobody
    }
}

/// What comes of it, if it needs no more wakes than that; otherwise it is dropped.
async fn with_wakes<T>(mut wakes: usize, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    std::future::poll_fn(move |context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if wakes == 0 => Poll::Ready(None),
        Poll::Pending => {
            wakes -= 1;
            Poll::Pending
        }
    })
    .await
}

fn received(is_encrypted: bool) {
    let directories = [ground::directory(), ground::directory()];
    let open = |number: usize| {
        let mut builder = ground::options().background_threads(1);
        if is_encrypted {
            builder = builder.encryption_key(sapwood::EncryptionKey::from_bytes([number as u8; 32]));
        }
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(number as u64));
        let db = builder.open_on(volume).expect("opens");
        let store = Store::open(&db, directories[number].path()).expect("a store");
        store.group::<KvConfig, _>(7, KvMachine::new()).expect("a group")
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let (_log, mut sender) = open(0);
        let value = |number: u64| -> Vec<u8> {
            // Which is not compressed.
            let mut bytes = vec![0; 100_000];
            StdRng::seed_from_u64(number).fill(&mut bytes[..]);
            bytes
        };
        let put = |index: u64| command(3, index, KvCommand::put(format!("key {index}"), value(index)));
        sender.apply((1..30).map(put).chain([membership(3, 30, &[1, 2])])).await.expect("applies");
        let sent = sender.get_snapshot_builder().await.build_snapshot().await.expect("builds");
        let (meta, mut file) = (sent.meta, sent.snapshot);
        let mut content = Vec::new();
        file.read_to_end(&mut content).await.expect("reads");
        assert!(content.len() > 2 * CHUNK, "{} bytes", content.len());

        let (log, machine) = open(1);
        let state = machine.reader();
        let config = Arc::new(Config::default().validate().expect("a configuration"));
        let raft = Raft::new(2, config, Nobody, log, machine).await.expect("it starts");
        for (number, chunk) in content.chunks(CHUNK).enumerate() {
            let offset = number * CHUNK;
            let request = || InstallSnapshotRequest {
                vote: Vote::new_committed(3, 1),
                meta: meta.clone(),
                offset: offset as u64,
                data: chunk.to_vec(),
                done: offset + chunk.len() == content.len(),
            };
            // The last one is installed, and then it is there: only whole.
            let most = if request().done { 0 } else { 12 };
            let mut is_received = false;
            for wakes in 0..most {
                if let Some(answer) = with_wakes(wakes, raft.install_snapshot(request())).await {
                    answer.expect("it is received");
                    is_received = true;
                    break;
                }
            }
            if !is_received {
                raft.install_snapshot(request()).await.expect("it is received");
            }
        }
        let installed = raft.wait(Some(Duration::from_secs(20)));
        installed.snapshot(id(3, 30), "the snapshot is there").await.expect("in time");
        for index in 1..30 {
            let found = state.get(format!("key {index}")).expect("reads").expect("it is there");
            assert!(found.value == value(index));
        }
        raft.shutdown().await.expect("it stops");
    });
}

#[test]
fn chunks_that_were_given_up_are_received_again() {
    received(false);
    received(true);
}
