//! Entry points for the fuzzer (and for a test that replays the corpus). Any bytes are decoded or refused;
//! nothing panics or grows without bound. The first byte of an input selects whether the rest is used as it is,
//! or first sealed with the right lengths and checksums, without which a fuzzer would never get past them.

use crate::database_id::DatabaseId;
use crate::db::large_values::stored::{CHUNK_LEN, Head};
use crate::encryption::Encryption;
use crate::followers::durable::Durable;
use crate::followers::registration::Registered;
use crate::merge::{AddI64Wrapping, AddU64, Append, Max, MergeOperator, Min, Union};
use crate::merging::{MergeLimits, Merging, Stored};
use crate::operation::{KeyspaceId, Operations};
use crate::repair::Repair;
use crate::storage::compressed::{decode, is_compressed};
use crate::storage::dictionary::{Dictionaries, Dictionary};
use crate::storage::frames::Frames;
use crate::storage::node::Node;
use crate::version::current::Current;
use crate::version::manifest;
use crate::wal::{self, Generations, LogFiles};
use crate::{Change, ChangesPosition, Compression, Database, KeyspaceOptions};
use bytes::Bytes;
use psync::{Simulated, Volume};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const DATABASE: DatabaseId = DatabaseId([7; 16]);

fn split(input: &[u8]) -> (bool, &[u8]) {
    input.split_first().map_or((false, input), |(first, rest)| (first & 1 == 1, rest))
}

/// Keyspaces 0 and 7 have a dictionary.
fn dictionaries() -> &'static Dictionaries {
    static ALL: OnceLock<Dictionaries> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = Dictionaries::default();
        let dictionary =
            Dictionary::new(b"what the leaves of a keyspace have in common".repeat(9)).expect("short");
        assert!([0, 7].into_iter().all(|keyspace| all.insert(KeyspaceId(keyspace), Arc::clone(&dictionary))));
        all
    })
}

/// A node.
pub fn node(input: &[u8]) {
    let (sealed, bytes) = split(input);
    let mut bytes = bytes.to_vec();
    if sealed {
        crate::storage::node::seal(&mut bytes);
    }
    let decoded = match is_compressed(&bytes) {
        true => decode(&bytes, &Frames::new(1 << 20), dictionaries()),
        false => Node::decode(Bytes::from(bytes)),
    };
    if let Ok(node) = decoded {
        for index in 0..node.count() {
            let (key, payload) = node.entry(index);
            assert_eq!(node.search(&key), Ok(index));
            assert_eq!(node.payload(index), payload);
            if node.name().is_inner() {
                node.child(index);
            }
            if node.level() == crate::storage::node::PIECE {
                node.change(index);
            }
        }
    }
}

/// A manifest.
pub fn manifest(input: &[u8]) {
    let (sealed, bytes) = split(input);
    let current = Current {
        format: crate::version::current::FORMAT,
        database: DATABASE,
        manifest: 3,
        span: 1 << 20,
        manifest_len: 0,
    };
    let bytes = if sealed { manifest::seal(&current, bytes) } else { bytes.to_vec() };
    // Only that it returns matters, not the result.
    let _ = manifest::decode(&bytes[..], (&current, &Encryption::NONE), 1 << 30, &Default::default());
}

/// `CURRENT`, as it is and with the right checksum.
pub fn current(input: &[u8]) {
    for input in [input, &with_checksum(input)] {
        let _ = Current::decode(input, "a directory");
    }
}

/// The bytes with the checksum of all others as their last four.
fn with_checksum(input: &[u8]) -> Vec<u8> {
    let content = &input[..input.len().saturating_sub(4)];
    [content, &crc32c::crc32c(content).to_le_bytes()].concat()
}

/// A log of one generation, and the operations in it.
pub fn wal(input: &[u8]) {
    let (sealed, bytes) = split(input);
    let bytes = if sealed { wal::seal(DATABASE, bytes) } else { bytes.to_vec() };
    let volume = Simulated::new(1);
    if volume.write_file(&wal::file_name(1), &bytes).is_err() {
        return;
    }
    let generations = Generations { low: 1, high: 1 };
    let _ = LogFiles::new(&volume, DATABASE).replay(&Encryption::NONE, generations, &mut |record| {
        let taken = Operations::new(&record.body).count();
        assert!(taken <= bytes.len(), "more operations than bytes");
        Ok(())
    });
}

/// A backup as a stream.
pub fn backup(input: &[u8]) {
    let (sealed, bytes) = split(input);
    let bytes = if sealed { crate::backup::seal(DATABASE, bytes) } else { bytes.to_vec() };
    // Only that it returns matters, not the result.
    let _ = crate::backup::Restore::from_stream(&bytes[..]).verify();
}

/// The data keys of an encrypted database.
pub fn keys(input: &[u8]) {
    let (sealed, bytes) = split(input);
    let mut bytes = bytes.to_vec();
    if sealed {
        crate::encryption::seal_keys(&mut bytes);
    }
    let key = crate::EncryptionKey::from_bytes([9; 32]);
    // Only that it returns matters, not the result.
    let _ = Encryption::of_copy(&bytes, Some(&key), "a directory");
}

/// What writer and followers tell each other, as it is and with the right checksum.
pub fn followers(input: &[u8]) {
    for input in [input, &with_checksum(input)] {
        let _ = Durable::decode(input, DATABASE, [7; 16]);
        let _ = Registered::decode(input);
    }
}

/// What is stored for the records of keyspaces that merge and of those with large values, and positions of the change feed.
pub fn stored(input: &[u8]) {
    let operators: [Arc<dyn MergeOperator>; 6] = [
        Arc::new(AddU64),
        Arc::new(AddI64Wrapping),
        Arc::new(Min),
        Arc::new(Max),
        Arc::new(Append),
        Arc::new(Union::of_len(4)),
    ];
    let Some(([kind, len], rest)) = input.split_first_chunk() else { return };
    let (newer, older) = rest.split_at(rest.len().min(usize::from(*len)));
    let limits = MergeLimits { operand: 1 << 10, value: 1 << 12 };
    let operator = &operators[usize::from(kind / 2) % operators.len()];
    let merging = Merging::new(Arc::clone(operator), limits);
    let older = (kind & 1 > 0).then_some(older);
    let laid = merging.lay(newer, older);
    // Two damaged lists of operands may make one that is damaged.
    if let Some(Stored::Value { .. } | Stored::Failed { .. }) = Stored::decode(newer) {
        assert_eq!(laid, newer);
    }
    _ = merging.read(b"key", &laid);
    if let Some(stack) = merging.lay_all([Some(newer), older]) {
        _ = merging.read(b"key", &stack);
    }
    if let Ok(head) = Head::decode(&Bytes::copy_from_slice(rest)) {
        assert_eq!(head.encode(), rest);
    }
    if let Some(position) = ChangesPosition::from_bytes(rest) {
        assert_eq!(position.to_bytes(), rest);
        assert_eq!(position.to_string().parse().ok(), Some(position));
    }
    _ = String::from_utf8_lossy(rest).parse::<ChangesPosition>().map(|position| position.to_string());
}

/// Changes files: each seven bytes are a file, four bytes of an offset, what is to be done there, and a byte.
fn change(image: &Simulated, changes: &[u8]) {
    let Ok(entries) = image.list() else { return };
    for change in changes.as_chunks::<7>().0.iter().take(16) {
        let [file, a, b, c, d, what, byte] = *change;
        let name = &entries[usize::from(file) % entries.len()].name;
        let Ok(mut bytes) = image.read_file(name) else { continue };
        if bytes.is_empty() {
            continue;
        }
        let at = u32::from_le_bytes([a, b, c, d]) as usize % bytes.len();
        match what % 8 {
            0..5 => bytes[at] ^= byte,
            5 => bytes.truncate(at),
            6 => {
                let end = bytes.len().min(at + 512);
                bytes[at..end].fill(byte);
            }
            _ => _ = image.remove_file(name),
        }
        if what % 8 < 7 && image.write_file(name, &bytes).is_err() {
            return;
        }
    }
}

/// A repair of a small database that was changed.
pub fn repaired(input: &[u8]) {
    let image = Small::get().image.crash();
    change(&image, input);
    let new = Simulated::new(2);
    if Repair::of_volume(Arc::new(image)).memory(4 << 20).onto(Arc::new(new.clone())).is_err() {
        return;
    }
    let opened = Database::builder().memory(4 << 20).background_threads(0).open_on(Arc::new(new));
    opened.and_then(|db| db.check()).expect("what was repaired is sound");
}

/// Opens a small database that was changed, and uses all of it. The first byte says how many changes come, whether a follower opens it, and whether it is written
/// to; an edit of the manifest, behind its length, and a record of the log may follow, with the right checksums.
pub fn opened(input: &[u8]) {
    let small = Small::get();
    let Some((count, rest)) = input.split_first() else { return };
    let (changes, rest) = rest.split_at(rest.len().min(usize::from(count % 4) * 7));
    let image = small.image.crash();
    let is_forged = small.go_on(&image, rest);
    change(&image, changes);
    let (is_follower, is_written) = (count & 4 > 0, count & 8 > 0);
    let builder = Database::builder().memory(4 << 20).background_threads(0).follow(is_follower);
    if let Ok(db) = builder.open_on(Arc::new(image)) {
        use_all(&db, is_forged);
        let write =
            || db.keyspace("new")?.insert("new", "new").and_then(|()| db.flush()).and_then(|()| db.compact());
        if is_written && write().is_ok() {
            use_all(&db, is_forged);
        }
        _ = db.close();
    }
}

/// More records than a small database has: whatever is read ends.
const RECORDS_MAX: usize = 10_000;

/// Reads all. What is read was written, unless checksums are forged.
fn use_all(db: &Database, is_forged: bool) {
    _ = db.check();
    _ = db.stats().to_string();
    for name in db.keyspaces() {
        if let Ok(values) = db.large_values(&name) {
            for record in values.range(..).take(RECORDS_MAX) {
                let Ok((key, len)) = record else { break };
                // The length may be claimed.
                let value = values.get_range(&key, 0..1 << 20);
                let is_written = || matches!(&value, Ok(Some(value)) if *value == large_value() && len == u64::from(LARGE));
                assert!(is_forged || value.is_err() || is_written(), "{key:?}");
            }
            continue;
        }
        let Ok(keyspace) = db.keyspace(&name) else { continue };
        for record in keyspace.iter().take(RECORDS_MAX) {
            let Ok((key, value)) = record else { break };
            let is_written = || {
                value.starts_with(b"value ")
                    && value.ends_with(&key.iter().map(|byte| byte ^ 7).collect::<Vec<_>>())
            };
            let is_other = name == "sums" || name == "new";
            assert!(is_forged || is_other || is_written(), "{key:?}: {value:?}");
        }
        _ = keyspace.iter().rev().take(RECORDS_MAX).count();
        for number in [0u32, 77, 99, u32::MAX] {
            _ = (keyspace.get(number.to_be_bytes()), keyspace.explain(number.to_be_bytes()));
            _ = keyspace.range_estimate(number.to_be_bytes()..);
            _ = keyspace.expiry(number.to_be_bytes());
        }
        _ = keyspace.len_estimate();
    }
    if let Ok(changes) = db.oldest_change().and_then(|oldest| db.changes(&oldest)) {
        for change in changes.take(RECORDS_MAX) {
            match change {
                Ok(Change::Commit(commit)) => _ = commit.operations().count(),
                Ok(_) => {}
                Err(_) => break,
            }
        }
    }
}

/// A small database, and where its manifest and its log end.
struct Small {
    image: Simulated,
    current: Current,
    /// Length of the manifest, and the epoch of its last edit.
    manifest: (u64, u64),
    log: wal::Tail,
}

impl Small {
    fn get() -> &'static Self {
        static SMALL: OnceLock<Small> = OnceLock::new();
        SMALL.get_or_init(|| {
            let image = small_database().expect("a simulated volume does not fail");
            Self::ends(image).expect("it is sound")
        })
    }

    fn ends(image: Simulated) -> crate::Result<Self> {
        let current = Current::read(&image)?;
        let len = image.read_file(crate::cache::pager::FILE)?.len() as u64;
        let of = (&current, &Encryption::NONE);
        let manifest = manifest::replay(&image, of, len, &Default::default())?;
        let generations = Generations { low: manifest.version.wal_low, high: manifest.version.wal_high };
        let log = LogFiles::new(&image, current.database).replay(of.1, generations, &mut |_| Ok(()))?;
        Ok(Self { image, manifest: (manifest.len, manifest.version.epoch), current, log })
    }

    /// Adds an edit to the manifest of an image, and a record to its log. Returns whether there was one.
    fn go_on(&self, image: &Simulated, input: &[u8]) -> bool {
        let Some((len, rest)) = input.split_first() else { return false };
        let (edit, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        let add = |name: &str, at: u64, added: &[u8]| {
            let mut bytes = image.read_file(name).expect("it is there");
            let at = at as usize;
            bytes.resize(bytes.len().max(at + added.len()), 0);
            bytes[at..at + added.len()].copy_from_slice(added);
            image.write_file(name, &bytes).expect("a simulated volume does not fail");
        };
        if !edit.is_empty() {
            let (at, epoch) = self.manifest;
            let record = manifest::seal_record(&self.current, at, epoch + 1, edit);
            add(&manifest::file_name(self.current.manifest), at, &record);
        }
        if let Some((count, body)) = rest.split_first() {
            let log = &self.log;
            let place = wal::RecordPosition {
                database: self.current.database,
                generation: log.ends_in,
                offset: log.len,
            };
            let record =
                wal::sealed_record(&place, (log.next_seq, log.epoch), log.durable, (u32::from(*count), body));
            add(&wal::file_name(log.ends_in), log.len, &record);
        }
        !edit.is_empty() || !rest.is_empty()
    }
}

/// Bytes of a value of more than a chunk: the fewest that need two.
const LARGE: u32 = CHUNK_LEN as u32 + 1;

fn large_value() -> Vec<u8> {
    (0..LARGE).map(|at| (at ^ at >> 7) as u8).collect()
}

/// Keyspaces of all kinds, in leaves, log areas and the log, whose changes are kept. Its process was killed.
fn small_database() -> crate::Result<Simulated> {
    let volume = Simulated::new(1);
    let builder =
        Database::builder().memory(4 << 20).leaf_len(512).segment_span(1 << 20).keep_changes(1 << 20);
    let db = builder.background_threads(0).open_on(Arc::new(volume.clone()))?;
    let packed = KeyspaceOptions::new().compression(Compression::Lz4);
    let expiring = KeyspaceOptions::new().time_to_live(Duration::from_secs(1 << 32));
    let keyspaces =
        [db.keyspace("plain")?, db.keyspace_with("packed", packed)?, db.keyspace_with("expiring", expiring)?];
    let sums = db.keyspace_with("sums", KeyspaceOptions::new().merge(AddU64))?;
    let large = db.large_values("large")?;
    large.insert_from("whale", &large_value()[..])?;
    for round in 0..3u32 {
        for number in (0..100 >> round).map(|number: u32| (number * 37 + round) % 100) {
            let key = number.to_be_bytes();
            let value =
                [format!("value {round} of {number}").repeat(4).as_bytes(), &key.map(|byte| byte ^ 7)]
                    .concat();
            keyspaces[number as usize % 3].insert(key, value)?;
            sums.merge((number % 20).to_be_bytes(), 1u64.to_be_bytes())?;
        }
        keyspaces[0].remove_range(&90u32.to_be_bytes()..)?;
        if round < 2 {
            db.flush()?;
        }
    }
    Ok(volume.crash())
}

#[cfg(test)]
mod tests {
    use super::{Database, Small};
    use crate::operation::put_insert;
    use std::path::Path;
    use std::sync::Arc;

    #[test]
    fn a_forged_record_is_taken() {
        let small = Small::get();
        let open = |image| {
            let builder = Database::builder().memory(4 << 20).background_threads(0);
            builder.open_on(Arc::new(image)).unwrap()
        };
        let plain = open(small.image.crash()).keyspace("plain").unwrap().id();
        let mut input = vec![0, 1];
        put_insert(&mut input, plain, b"forged", b"value");
        let image = small.image.crash();
        assert!(small.go_on(&image, &input));
        let value = open(image).keyspace("plain").unwrap().get("forged").unwrap();
        assert_eq!(value.as_deref(), Some(&b"value"[..]));
    }

    /// What the fuzzer found interesting stays fine.
    #[test]
    fn the_corpus_is_decoded_or_refused() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        type Target = fn(&[u8]);
        let targets: [(&str, Target); 10] = [
            ("node", super::node),
            ("manifest", super::manifest),
            ("current", super::current),
            ("wal", super::wal),
            ("backup", super::backup),
            ("keys", super::keys),
            ("followers", super::followers),
            ("repair", super::repaired),
            ("opened", super::opened),
            ("stored", super::stored),
        ];
        for (name, target) in targets {
            let files: Vec<_> = std::fs::read_dir(corpus.join(name)).unwrap().flatten().collect();
            assert!(!files.is_empty(), "{name} has no corpus");
            for file in files {
                target(&std::fs::read(file.path()).unwrap());
            }
        }
    }
}
