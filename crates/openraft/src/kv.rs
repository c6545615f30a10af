//! A ready-made machine: one ordered map, with versions.
//!
//! Invariants:
//! 1. The version of a record is the number of the command that wrote it ([`Apply::index`]), so it grows with every change of a key, and no two
//!    changes of different commands have the same one, as long as the group has one history: one that goes on from a backup, or without a majority
//!    ([`Store::restart_group`](crate::Store::restart_group)), gives numbers again that the other history has given. It stands before the value, as eight bytes, little-endian.
//! 2. A command whose conditions do not hold changes nothing.

use crate::machine::{Apply, Machine};
use crate::snapshot_file::SnapshotFile;
use crate::state_machine::StateReader;
use bytes::Bytes;
use openraft::{BasicNode, RaftTypeConfig};
use sapwood::{Keyspace, KeyspaceOptions};
use serde::{Deserialize, Serialize};

/// What the log has of a condition or a write beside its key and value takes less bytes than this.
const RECORD_OVERHEAD: usize = 64;
/// The same of a removed range, beside its bounds: a transaction counts 80 bytes for it.
const RANGE_OVERHEAD: usize = 96;
/// Bytes: a longer value that was found is not answered, only its version: the answers to all commands that are applied together are in memory
/// at once, on every node, and an entry may have 4096 commands that find the longest value.
const FOUND_MAX: usize = 4096;

openraft::declare_raft_types!(
    /// openraft's types for a [`KvMachine`]: nodes with numbers and addresses.
    pub KvConfig:
        D = KvCommand,
        R = KvAnswer,
        NodeId = u64,
        Node = BasicNode,
        SnapshotData = SnapshotFile,
);

openraft::declare_raft_types!(
    /// openraft's types for a [`Batched`](crate::Batched) [`KvMachine`], whose entries have several commands each.
    pub KvBatchConfig:
        D = Vec<KvCommand>,
        R = Vec<KvAnswer>,
        NodeId = u64,
        Node = BasicNode,
        SnapshotData = SnapshotFile,
);

/// What an entry of a group of a [`KvMachine`] has: a command, or several.
///
/// ```
/// use openraft::RaftTypeConfig;
/// use sapwood_openraft::{KvData, StateReader};
///
/// fn fram<C: RaftTypeConfig<D: KvData>>(state: &StateReader<C>) -> sapwood_openraft::Result<bool> {
///     Ok(state.get("fram")?.is_some())
/// }
/// ```
pub trait KvData: sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::KvCommand {}
    impl Sealed for Vec<super::KvCommand> {}
}

impl KvData for KvCommand {}
impl KvData for Vec<KvCommand> {}

/// A change of a record, or of a range of them.
///
/// ```
/// use sapwood_openraft::KvWrite;
///
/// let writes = [KvWrite::put("fram", "1892"), KvWrite::delete("beagle"), KvWrite::delete_range("a", Some("c"))];
/// assert_eq!(writes[0], KvWrite::Put { key: "fram".into(), value: "1892".into() });
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum KvWrite {
    /// Inserts a record, or replaces it.
    Put {
        /// 1 to 65,536 bytes.
        key: Bytes,
        /// A value of the database, less 8 bytes.
        value: Bytes,
    },
    /// Removes a record, if it is there.
    Delete {
        /// Its key.
        key: Bytes,
    },
    /// Removes all records of a range.
    DeleteRange {
        /// The first key that is removed.
        from: Bytes,
        /// The first key that is not removed any more; without it, all to the end are.
        to: Option<Bytes>,
    },
}

impl KvWrite {
    /// Inserts or replaces a record.
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::Put { key: key.into(), value: value.into() }
    }

    /// Removes a record.
    pub fn delete(key: impl Into<Bytes>) -> Self {
        Self::Delete { key: key.into() }
    }

    /// Removes the records from one key to, but without, another, or to the end.
    pub fn delete_range(from: impl Into<Bytes>, to: Option<impl Into<Bytes>>) -> Self {
        Self::DeleteRange { from: from.into(), to: to.map(Into::into) }
    }
}

/// What a transaction has read, and what must still be so when it is applied.
///
/// ```
/// use sapwood_openraft::KvCondition;
///
/// let unchanged = KvCondition::Version { key: "fram".into(), version: 17 };
/// let absent = KvCondition::Version { key: "beagle".into(), version: 0 };
/// let equal = KvCondition::Value { key: "fram".into(), value: Some("1892".into()) };
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum KvCondition {
    /// The record has this version; 0: there is none. No record ever has a version again, but absence comes back when a record is removed: so a command without an answer
    /// may be repeated with a version of a record that it puts or deletes, which it takes away, and not with 0 unless nobody removes the record, nor with versions of records alone
    /// that it only reads: they are the same when it has taken effect.
    Version {
        /// Its key.
        key: Bytes,
        /// The version that was read.
        version: u64,
    },
    /// The record has this value; `None`: there is none.
    Value {
        /// Its key.
        key: Bytes,
        /// The value.
        value: Option<Bytes>,
    },
}

impl KvCondition {
    fn key(&self) -> &Bytes {
        match self {
            Self::Version { key, .. } | Self::Value { key, .. } => key,
        }
    }

    /// The answer to a command whose condition of this number does not hold for the stored record. `None` if it holds.
    fn refuse(&self, condition: usize, stored: Option<&[u8]>) -> Option<KvAnswer> {
        let found = stored.map(KvValue::parts);
        let version = found.map_or(0, |(version, _)| version);
        match (self, found) {
            (Self::Version { version: expected, .. }, _) => {
                (version != *expected).then_some(KvAnswer::Outdated { condition, version })
            }
            (Self::Value { value, .. }, found) if found.map(|(_, found)| found) == value.as_deref() => None,
            (Self::Value { .. }, Some((_, value))) if value.len() > FOUND_MAX => {
                Some(KvAnswer::Outdated { condition, version })
            }
            (Self::Value { .. }, _) => {
                Some(KvAnswer::Refused { condition, found: stored.map(KvValue::decode) })
            }
        }
    }
}

/// A command of a [`KvMachine`].
///
/// A transaction is run by a client against a state that it read, and recorded: what it read becomes conditions, what it wrote becomes writes. It
/// takes effect if all conditions still hold when it is applied, so as if it had run at that moment alone; otherwise
/// the client reads again. Conditions are of records: a range that was read is not watched for records that are new in it.
///
/// Where a format has names for fields, as JSON has, none is let in that is not known: it might be a condition in the wrong place.
///
/// ```
/// use sapwood_openraft::{KvCommand, KvCondition, KvWrite};
///
/// let put = KvCommand::put("fram", "1892");
/// let swap = KvCommand::compare_and_swap("fram", Some("1892"), Some("1893"));
/// let transfer = KvCommand {
///     conditions: vec![
///         KvCondition::Version { key: "a".into(), version: 7 },
///         KvCondition::Version { key: "b".into(), version: 9 },
///     ],
///     writes: vec![KvWrite::put("a", "90"), KvWrite::put("b", "110")],
/// };
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvCommand {
    /// All must hold.
    pub conditions: Vec<KvCondition>,
    /// Then these are carried out, one after the other.
    pub writes: Vec<KvWrite>,
}

impl KvCommand {
    /// The most [`log_bytes`](Self::log_bytes) of a command, or of commands that share an entry, which can be appended and applied on **every**
    /// node, however little memory its database has: 896 KiB. A node with more could take more, but those that it sends it to might not.
    ///
    /// The least that a value may have is 1 MiB less 65,600 bytes (with `Builder::segment_span` of 4 MiB or more), and the least that the
    /// writes of a transaction may take is 1 MiB, and 2 MiB with 128 bytes for each: with the shortest keys that is 137 for 65 counted.
    ///
    /// ```
    /// use sapwood_openraft::KvCommand;
    ///
    /// let long = KvCommand::put("fram", vec![0; 1 << 20]);
    /// assert!(long.refusal(KvCommand::BYTES_MAX).is_some());
    /// ```
    pub const BYTES_MAX: usize = 896 << 10;

    /// Inserts or replaces a record.
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { conditions: Vec::new(), writes: vec![KvWrite::put(key, value)] }
    }

    /// Removes a record.
    pub fn delete(key: impl Into<Bytes>) -> Self {
        Self { conditions: Vec::new(), writes: vec![KvWrite::delete(key)] }
    }

    /// Removes the records from one key to, but without, another, or to the end.
    pub fn delete_range(from: impl Into<Bytes>, to: Option<impl Into<Bytes>>) -> Self {
        Self { conditions: Vec::new(), writes: vec![KvWrite::delete_range(from, to)] }
    }

    /// Replaces a record if it has the value `old` (`None`: if there is none) by `new` (`None`: removes it).
    pub fn compare_and_swap(
        key: impl Into<Bytes>,
        old: Option<impl Into<Bytes>>,
        new: Option<impl Into<Bytes>>,
    ) -> Self {
        let key = key.into();
        let write = match new {
            Some(value) => KvWrite::put(key.clone(), value),
            None => KvWrite::delete(key.clone()),
        };
        let condition = KvCondition::Value { key, value: old.map(Into::into) };
        Self { conditions: vec![condition], writes: vec![write] }
    }

    /// Why no node could apply this command, whatever its state; `None` if nothing speaks against it. To be asked before it
    /// is given to openraft: a command that cannot be applied stops every node. `bytes_max` is at most [`BYTES_MAX`](Self::BYTES_MAX), or
    /// seven eighths of a sixteenth of the least memory of a node's database, if that is more, but never more than 14 MiB.
    ///
    /// ```
    /// use sapwood_openraft::KvCommand;
    ///
    /// let refusal = |command: KvCommand| command.refusal(KvCommand::BYTES_MAX);
    /// assert_eq!(refusal(KvCommand::put("fram", "1892")), None);
    /// assert!(refusal(KvCommand::put("", "1892")).is_some());
    /// assert!(refusal(KvCommand::put("fram", vec![0; 1 << 20])).is_some());
    /// ```
    pub fn refusal(&self, bytes_max: usize) -> Option<String> {
        let too_long = |key: &Bytes| key.len() > sapwood::KEY_LEN_MAX;
        if let Some(key) = self.keys().find(|key| key.is_empty() || too_long(key)) {
            let (len, max) = (key.len(), sapwood::KEY_LEN_MAX);
            return Some(format!("a key has {len} bytes; 1 to {max} are possible"));
        }
        if let Some(bound) = self.bounds().find(|bound| too_long(bound)) {
            let (len, max) = (bound.len(), sapwood::KEY_LEN_MAX);
            return Some(format!("a bound of a range has {len} bytes; {max} are possible"));
        }
        let bytes = self.log_bytes();
        (bytes > bytes_max).then(|| format!("the command has {bytes} bytes; {bytes_max} are possible"))
    }

    /// About the bytes that it takes in the log, and in the batch of the database that it is applied in: not less.
    ///
    /// ```
    /// use sapwood_openraft::KvCommand;
    ///
    /// assert!((1004..1100).contains(&KvCommand::put("fram", vec![0; 1000]).log_bytes()));
    /// ```
    pub fn log_bytes(&self) -> usize {
        let conditions = self.conditions.iter().map(|condition| match condition {
            KvCondition::Value { value: Some(value), .. } => value.len(),
            KvCondition::Value { value: None, .. } | KvCondition::Version { .. } => 0,
        });
        let writes = self.writes.iter().map(|write| match write {
            KvWrite::Put { value, .. } => value.len(),
            KvWrite::Delete { .. } => 0,
            KvWrite::DeleteRange { .. } => RANGE_OVERHEAD,
        });
        let keys = self.keys().map(|key| key.len() + RECORD_OVERHEAD);
        conditions.chain(writes).chain(keys).chain(self.bounds().map(Bytes::len)).sum()
    }

    /// Between which records are removed. They may be empty.
    fn bounds(&self) -> impl Iterator<Item = &Bytes> {
        let bounds = self.writes.iter().map(|write| match write {
            KvWrite::DeleteRange { from, to } => [Some(from), to.as_ref()],
            KvWrite::Put { .. } | KvWrite::Delete { .. } => [None, None],
        });
        bounds.flatten().flatten()
    }

    /// The keys that it reads or writes.
    fn keys(&self) -> impl Iterator<Item = &Bytes> {
        let written = self.writes.iter().filter_map(|write| match write {
            KvWrite::Put { key, .. } | KvWrite::Delete { key } => Some(key),
            KvWrite::DeleteRange { .. } => None,
        });
        self.conditions.iter().map(KvCondition::key).chain(written)
    }
}

/// The answer to a [`KvCommand`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvAnswer {
    /// The command took effect. What it put has this version.
    Done {
        /// The index of the command.
        version: u64,
    },
    /// A condition on a value did not hold, and nothing was changed.
    Refused {
        /// Which condition, from 0.
        condition: usize,
        /// What is there in place of what was expected.
        found: Option<KvValue>,
    },
    /// There was no command.
    Nothing,
    /// A condition did not hold, and nothing was changed. Said in place of `Refused` if the condition was of the version, or if the value that was
    /// found has more than 4096 bytes.
    Outdated {
        /// Which condition, from 0.
        condition: usize,
        /// The version that the record has; 0: there is none.
        version: u64,
    },
}

/// A value and its version.
///
/// ```
/// let value = sapwood_openraft::KvValue { version: 17, value: "1892".into() };
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvValue {
    /// The index of the command that wrote it.
    pub version: u64,
    /// What it wrote.
    pub value: Bytes,
}

impl KvValue {
    /// A record of the keyspace. What has not even a version is of version 0.
    fn parts(stored: &[u8]) -> (u64, &[u8]) {
        let (version, value) = stored.split_first_chunk().unwrap_or((&[0; 8], stored));
        (u64::from_le_bytes(*version), value)
    }

    fn decode(stored: &[u8]) -> Self {
        let (version, value) = Self::parts(stored);
        Self { version, value: Bytes::copy_from_slice(value) }
    }

    fn encode(version: u64, value: &[u8]) -> Vec<u8> {
        [&version.to_le_bytes()[..], value].concat()
    }
}

/// A replicated ordered map: put, delete, range removal, compare-and-swap, transactions.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use openraft::storage::RaftStateMachine;
/// use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId};
/// use sapwood_openraft::{KvAnswer, KvCommand, KvConfig, KvMachine, Store};
///
/// let db = sapwood::Database::open(dir.path().join("node.db"))?;
/// let store = Store::open(&db, dir.path().join("snapshots"))?;
/// let (log, mut machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// // What openraft does with commands that are committed:
/// let entry = |index, command| {
///     let log_id = LogId::new(CommittedLeaderId::new(1, 1), index);
///     Entry { log_id, payload: EntryPayload::Normal(command) }
/// };
/// let put = entry(1, KvCommand::put("fram", "1892"));
/// let swap = entry(2, KvCommand::compare_and_swap("fram", Some("1820"), Some("1893")));
/// let answers = machine.apply([put, swap]).await?;
/// assert_eq!(answers[0], KvAnswer::Done { version: 1 });
/// assert!(matches!(answers[1], KvAnswer::Refused { condition: 0, .. }));
/// # Ok::<_, openraft::StorageError<u64>>(()) })?;
/// let fram = machine.reader().get("fram")?;
/// assert_eq!(fram.map(|fram| (fram.version, fram.value)), Some((1, "1892".into())));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct KvMachine {
    options: KeyspaceOptions,
}

impl KvMachine {
    /// A machine whose keyspace has default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// A machine whose keyspace is created with these, compressed for instance.
    ///
    /// ```
    /// use sapwood::{Compression, KeyspaceOptions};
    ///
    /// let machine = sapwood_openraft::KvMachine::with(KeyspaceOptions::new().compression(Compression::Lz4));
    /// ```
    pub fn with(options: KeyspaceOptions) -> Self {
        Self { options }
    }
}

impl Machine for KvMachine {
    type Command = KvCommand;
    type Answer = KvAnswer;

    fn keyspaces(&self) -> Vec<(String, KeyspaceOptions)> {
        vec![("records".into(), self.options.clone())]
    }

    fn apply(&self, at: &mut Apply<'_>, command: KvCommand) -> sapwood::Result<KvAnswer> {
        let Apply { transaction, keyspaces, index } = at;
        let records = &keyspaces[0];
        for (number, condition) in command.conditions.iter().enumerate() {
            let found = transaction.get(records, condition.key())?;
            if let Some(refused) = condition.refuse(number, found.as_deref()) {
                return Ok(refused);
            }
        }
        for write in command.writes {
            match write {
                KvWrite::Put { key, value } => {
                    transaction.insert(records, key, KvValue::encode(*index, &value))?;
                }
                KvWrite::Delete { key } => transaction.remove(records, key)?,
                KvWrite::DeleteRange { from, to: None } => transaction.remove_range(records, from..)?,
                KvWrite::DeleteRange { from, to: Some(to) } if from < to => {
                    transaction.remove_range(records, from..to)?;
                }
                KvWrite::DeleteRange { .. } => {}
            }
        }
        Ok(KvAnswer::Done { version: *index })
    }

    fn without_command(&self) -> KvAnswer {
        KvAnswer::Nothing
    }
}

fn get(records: &Keyspace, key: &[u8]) -> sapwood::Result<Option<KvValue>> {
    Ok(records.get(key)?.map(|stored| KvValue::decode(&stored)))
}

/// Reads of the state of a [`KvMachine`].
impl<C: RaftTypeConfig<D: KvData>> StateReader<C> {
    /// The value of a key in the state of this node, which may be behind.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # use sapwood_openraft::{KvConfig, KvMachine, Store};
    /// # let db = sapwood::Database::open(dir.path().join("node.db"))?;
    /// # let store = Store::open(&db, dir.path().join("snapshots"))?;
    /// # let (log, machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
    /// let reader = machine.reader();
    /// // raft.ensure_linearizable().await?;  on the leader, for the newest
    /// assert_eq!(reader.get("fram")?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Database`](crate::Error::Database).
    pub fn get(&self, key: impl AsRef<[u8]>) -> crate::Result<Option<KvValue>> {
        Ok(self.read(|keyspaces| get(&keyspaces[0], key.as_ref()))?)
    }

    /// At most `limit` records from `from` to, but without, `to`, as of one moment.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # use sapwood_openraft::{KvConfig, KvMachine, Store};
    /// # let db = sapwood::Database::open(dir.path().join("node.db"))?;
    /// # let store = Store::open(&db, dir.path().join("snapshots"))?;
    /// # let (log, machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
    /// assert!(machine.reader().scan("a", Some("c"), 100)?.is_empty());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Database`](crate::Error::Database).
    pub fn scan(
        &self,
        from: impl AsRef<[u8]>,
        to: Option<impl AsRef<[u8]>>,
        limit: usize,
    ) -> crate::Result<Vec<(Bytes, KvValue)>> {
        Ok(self.scan_part(from, to, limit, usize::MAX)?.0)
    }

    /// The same, but ends as well behind the record with which keys and values have `bytes` or more. Returns whether it ended before the range
    /// did: it may go on with the last key and a byte 0 behind it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # use sapwood_openraft::{KvConfig, KvMachine, Store};
    /// # let db = sapwood::Database::open(dir.path().join("node.db"))?;
    /// # let store = Store::open(&db, dir.path().join("snapshots"))?;
    /// # let (log, machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
    /// let (records, is_more) = machine.reader().scan_part("a", Some("c"), 100, 1 << 20)?;
    /// assert!(records.is_empty() && !is_more);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Database`](crate::Error::Database).
    pub fn scan_part(
        &self,
        from: impl AsRef<[u8]>,
        to: Option<impl AsRef<[u8]>>,
        limit: usize,
        bytes: usize,
    ) -> crate::Result<(Vec<(Bytes, KvValue)>, bool)> {
        use std::ops::Bound;
        let to = to.as_ref().map_or(Bound::Unbounded, |to| Bound::Excluded(to.as_ref()));
        if let Bound::Excluded(to) = to
            && to <= from.as_ref()
        {
            return Ok((Vec::new(), false));
        }
        let mut range = self.read(|keyspaces| keyspaces[0].range((Bound::Included(from.as_ref()), to)));
        let (mut found, mut read) = (Vec::new(), 0);
        while let Some(record) = range.next_ref() {
            let (key, stored) = record?;
            if found.len() >= limit || read >= bytes {
                return Ok((found, true));
            }
            read += key.len() + stored.len();
            found.push((Bytes::copy_from_slice(key), KvValue::decode(stored)));
        }
        Ok((found, false))
    }
}
