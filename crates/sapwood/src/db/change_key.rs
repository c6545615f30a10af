//! Changes the key that an encrypted database opens with.

use crate::db::database::Database;
use crate::encryption::EncryptionKey;
use crate::error::{Error, Result};
use crate::version::current::Current;
use crate::version::manifest::Manifest;

impl Database {
    /// Changes the key of an [encrypted](crate::Builder::encryption_key) database: from now on it opens with this one only. What is written from
    /// now on is encrypted with a new data key, so that who had the old key cannot read it. What was there is encrypted anew by
    /// [`compact`](Database::compact), which copies it once, or when the collector moves it. Not so the log files that are
    /// [kept for changes](crate::Builder::keep_changes): they stay as they were written until they are given up, or removed by opening once with
    /// `keep_changes(0)`. Backups that were taken before open with the
    /// old key, also where later ones share segments with them. Followers are to be opened again with the new one.
    ///
    /// It is done when this returns, at once and durably. It can be done 1,023 times.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let path = dir.path().join("ships.db");
    /// use sapwood::{Database, EncryptionKey};
    ///
    /// let (old, new) = (EncryptionKey::generate()?, EncryptionKey::generate()?);
    /// let db = Database::builder().encryption_key(old.clone()).open(&path)?;
    /// db.change_encryption_key(&new)?;
    /// # drop(db);
    /// assert!(Database::builder().encryption_key(old).open(&path).is_err());
    /// let db = Database::builder().encryption_key(new).open(&path)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::EncryptionKey`] if the database is not encrypted; [`Error::DiskFull`]: the old key counts; [`Error::ReadOnly`];
    /// [`Error::Closed`]; I/O errors. After [`Error::Poisoned`] either key may count.
    pub fn change_encryption_key(&self, key: &EncryptionKey) -> Result<()> {
        let engine = &self.handle.engine;
        engine.health.check_writable()?;
        // The lock of the manifest: one change after the other.
        let change = |manifest: Option<&Manifest>| {
            if manifest.is_none() {
                return Err(Error::Closed);
            }
            let (volume, path) = (&*engine.volume, engine.health.path());
            let database = Current::read(volume)?.database;
            engine.encryption.change_key(volume, database, key, path)
        };
        engine.space.with_kept_space(|| engine.publisher.with_manifest(change))
    }
}

#[cfg(test)]
mod tests {
    use crate::background::garbage_collection::{self, Failed, Reading};
    use crate::cache::pager::FILE;
    use crate::flow::memory::Need;
    use crate::version::builder::VersionBuilder;
    use crate::{Database, EncryptionKey};
    use psync::{Fault, Filter, OperationKind, Repeat, Simulated};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    /// How many nodes that count are encrypted with each data key.
    fn nodes_of_keys(db: &Database) -> BTreeMap<u32, usize> {
        let engine = &db.handle.engine;
        let version = engine.state.version();
        let addresses: Vec<_> = version.table.iter().collect();
        let nodes = engine.pager.reader.read_stored(&version.segments, &addresses).unwrap();
        let mut count = BTreeMap::new();
        for node in nodes {
            let number = node.bytes()[node.bytes().len() - 44..].first_chunk::<4>().unwrap();
            *count.entry(u32::from_le_bytes(*number)).or_default() += 1;
        }
        count
    }

    #[test]
    fn a_compaction_encrypts_all_nodes_anew_once() {
        let volume = Simulated::new(1);
        let key = |byte| EncryptionKey::from_bytes([byte; 32]);
        let builder = |byte| {
            let builder = Database::builder().memory(4 << 20).leaf_len(512).segment_span(1 << 20);
            builder.background_threads(0).encryption_key(key(byte))
        };
        let db = builder(1).open_on(Arc::new(volume.clone())).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        let put = |from: u32| {
            (from..from + 5000).for_each(|number| keyspace.insert(number.to_be_bytes(), [7; 100]).unwrap());
            db.flush().unwrap();
        };
        put(0);
        db.change_encryption_key(&key(2)).unwrap();
        put(4900);
        let before = nodes_of_keys(&db);
        assert!(before[&1] > 100 && before[&2] > 100, "{before:?}");
        db.compact().unwrap();
        let after = nodes_of_keys(&db);
        assert_eq!(after.keys().copied().collect::<Vec<_>>(), [2]);
        let epoch = || db.handle.engine.state.load().version.epoch;
        let done = epoch();
        db.compact().unwrap();
        assert_eq!(epoch(), done, "nothing is left to do");
        drop((keyspace, db));
        let db = builder(2).open_on(Arc::new(volume)).unwrap();
        assert_eq!(db.keyspace("main").unwrap().iter().filter(Result::is_ok).count(), 9900);
        assert_eq!(db.handle.engine.state.load().version.oldest_key, 2);
        db.check().unwrap();
    }

    /// It needed as much space as all records take, since nothing of what it had copied became free before its end.
    #[test]
    fn a_compaction_that_encrypts_anew_needs_little_space() {
        let volume = Simulated::new(1);
        let builder = Database::builder().memory(4 << 20).segment_span(1 << 20).background_threads(0);
        let builder = builder.encryption_key(EncryptionKey::from_bytes([1; 32]));
        let db = builder.open_on(Arc::new(volume.clone())).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.ingest((0..1200u32).map(|number| (number.to_be_bytes(), vec![7; 16 << 10]))).unwrap();
        db.compact().unwrap();
        let live = db.handle.engine.state.load().version.live_bytes();
        db.change_encryption_key(&EncryptionKey::from_bytes([2; 32])).unwrap();
        volume.set_capacity(volume.used() + live / 3);
        db.compact().unwrap();
        assert_eq!(nodes_of_keys(&db).keys().copied().collect::<Vec<_>>(), [2]);
        assert_eq!(keyspace.iter().filter(Result::is_ok).count(), 1200);
    }

    /// Whoever changes a node can see to it that its checksum is right. Copying it to another place notices, and harms nothing else.
    #[test]
    fn a_forged_node_is_left_where_it_is() {
        let volume = Simulated::new(1);
        let key = |byte| EncryptionKey::from_bytes([byte; 32]);
        let builder = Database::builder().memory(4 << 20).leaf_len(512).background_threads(0);
        let db = builder.encryption_key(key(1)).open_on(Arc::new(volume.clone())).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        (0..5000u32).for_each(|number| keyspace.insert(number.to_be_bytes(), [7; 100]).unwrap());
        db.flush().unwrap();
        db.change_encryption_key(&key(2)).unwrap();
        let engine = &db.handle.engine;
        let version = engine.state.version();
        let (id, address) = version.table.iter().next().unwrap();
        let stored =
            || engine.pager.reader.read_stored(&version.segments, &[(id, address)]).unwrap().remove(0);
        let before = stored();
        let at =
            version.segments.file_offset(address.position, address.len() as usize, version.span).unwrap();
        // The polynomial of CRC-32C, x^32 first: a multiple of it changes no checksum.
        let polynomial = 1 | 0x82f6_3b78_u64 << 1;
        for bit in (0..33).filter(|bit| polynomial >> bit & 1 == 1) {
            volume.flip_bit(FILE, at + 100 + bit / 8, bit as u32 % 8).unwrap();
        }
        engine.pager.forget(address.position);
        let forged = stored();
        assert!(forged.bytes() != before.bytes() && forged.crc() == before.crc());
        assert!(db.compact().unwrap_err().is_damage());
        engine.health.check_writable().unwrap();
        // The collector steps over it.
        let mut guard = engine.writer().lock(Need::default()).unwrap();
        let mut builder = VersionBuilder::begin(Arc::clone(&version), &engine.pager, guard.get().unwrap());
        let segment = address.position.0 / version.span;
        let failed = garbage_collection::evacuate(&mut builder, &[segment], Reading::OneByOne).unwrap_err();
        assert!(matches!(failed, Failed::Reading(of, error) if of == segment && error.is_damage()));
        drop(builder);
        drop(guard);
        keyspace.insert(9000u32.to_be_bytes(), "later").unwrap();
        db.flush().unwrap();
        assert!(db.check().unwrap_err().is_damage());
        let unread = (0..5000u32).filter(|number| keyspace.get(number.to_be_bytes()).is_err()).count();
        assert!((1..20).contains(&unread), "{unread}");
    }

    /// It is so short that it would not be replaced for its length.
    #[test]
    fn a_compaction_leaves_no_manifest_that_the_old_data_key_opens() {
        let key = |byte| EncryptionKey::from_bytes([byte; 32]);
        let builder = Database::builder().background_threads(0).encryption_key(key(1));
        let db = builder.open_on(Arc::new(Simulated::new(1))).unwrap();
        db.keyspace("main").unwrap().insert("fram", "1892").unwrap();
        db.flush().unwrap();
        let manifest = || db.handle.engine.publisher.with_manifest(|it| it.unwrap().current().manifest);
        let of_old_key = manifest();
        db.change_encryption_key(&key(2)).unwrap();
        db.compact().unwrap();
        assert_eq!(manifest(), of_old_key + 1);
    }

    /// The next attempt found nothing to do.
    #[test]
    fn a_manifest_that_could_not_be_made_anew_is_made_by_the_next_attempt() {
        let key = |byte| EncryptionKey::from_bytes([byte; 32]);
        for (kind, fault) in [(OperationKind::Write, Fault::NoSpace), (OperationKind::Open, Fault::Exhausted)]
        {
            let volume = Simulated::new(1);
            let builder = Database::builder().background_threads(0).encryption_key(key(1));
            let db = builder.open_on(Arc::new(volume.clone())).unwrap();
            db.keyspace("main").unwrap().insert("fram", "1892").unwrap();
            db.flush().unwrap();
            let manifest = || db.handle.engine.publisher.with_manifest(|it| it.unwrap().current().manifest);
            let of_old_key = manifest();
            db.change_encryption_key(&key(2)).unwrap();
            let next = format!("manifest-{:06}", of_old_key + 1);
            volume.fail_nth(Filter::kinds([kind]).file(&next), 1, fault, Repeat::Once);
            if db.compact().is_err() {
                db.compact().unwrap();
            }
            assert_eq!(manifest(), of_old_key + 1, "{fault:?}");
        }
    }
}
