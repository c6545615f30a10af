//! Entry points for the fuzzer (and for a test that replays the corpus). Any bytes are decoded or refused;
//! nothing panics or grows without bound. The first byte of an input selects whether the rest is used as it is,
//! or first sealed with the right lengths and checksums, without which a fuzzer would never get past them.

use crate::database_id::DatabaseId;
use crate::encryption::Encryption;
use crate::followers::durable::Durable;
use crate::followers::registration::Registered;
use crate::operation::Operations;
use crate::repair::Repair;
use crate::storage::compressed::{decode, is_compressed};
use crate::storage::frames::Frames;
use crate::storage::node::Node;
use crate::version::current::Current;
use crate::version::manifest;
use crate::wal::{self, Generations, LogFiles};
use crate::{Compression, Database, KeyspaceOptions};
use bytes::Bytes;
use psync::{Simulated, Volume};
use std::sync::{Arc, OnceLock};

const DATABASE: DatabaseId = DatabaseId([7; 16]);

fn split(input: &[u8]) -> (bool, &[u8]) {
    input.split_first().map_or((false, input), |(first, rest)| (first & 1 == 1, rest))
}

/// A node.
pub fn node(input: &[u8]) {
    let (sealed, bytes) = split(input);
    let mut bytes = bytes.to_vec();
    if sealed {
        crate::storage::node::seal(&mut bytes);
    }
    let decoded = match is_compressed(&bytes) {
        true => decode(&bytes, &Frames::new(1 << 20), &Default::default()),
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

/// `CURRENT`.
pub fn current(input: &[u8]) {
    let _ = Current::decode(input, "a directory");
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

/// What writer and followers tell each other.
pub fn followers(input: &[u8]) {
    let _ = Durable::decode(input, DATABASE, [7; 16]);
    let _ = Registered::decode(input);
}

/// A repair of a small database that was changed: each seven bytes are a file, four bytes of an offset, what is to be done there, and a byte.
pub fn repaired(input: &[u8]) {
    static WHOLE: OnceLock<Simulated> = OnceLock::new();
    let image = WHOLE.get_or_init(small_database).crash();
    let Ok(entries) = image.list() else { return };
    for change in input.as_chunks::<7>().0.iter().take(16) {
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
    let new = Simulated::new(2);
    if Repair::of_volume(Arc::new(image)).memory(4 << 20).onto(Arc::new(new.clone())).is_err() {
        return;
    }
    let opened = Database::builder().memory(4 << 20).background_threads(0).open_on(Arc::new(new));
    opened.and_then(|db| db.check()).expect("what was repaired is sound");
}

/// Two keyspaces, in leaves, a log area and the log.
fn small_database() -> Simulated {
    let volume = Simulated::new(1);
    let build = || {
        let builder = Database::builder().memory(4 << 20).leaf_len(512).segment_span(1 << 20);
        let db = builder.background_threads(0).open_on(Arc::new(volume.clone()))?;
        let packed = KeyspaceOptions::new().compression(Compression::Lz4);
        let keyspaces = [db.keyspace("plain")?, db.keyspace_with("packed", packed)?];
        for round in 0..3u32 {
            for number in (0..200 >> round).map(|number: u32| (number * 37 + round) % 200) {
                let value = format!("value {round} of {number}").repeat(4);
                keyspaces[number as usize % 2].insert(number.to_be_bytes(), value)?;
            }
            if round < 2 {
                db.flush()?;
            }
        }
        Ok::<_, crate::Error>(())
    };
    build().expect("a simulated volume does not fail");
    volume
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// What the fuzzer found interesting stays fine.
    #[test]
    fn the_corpus_is_decoded_or_refused() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        type Target = fn(&[u8]);
        let targets: [(&str, Target); 8] = [
            ("node", super::node),
            ("manifest", super::manifest),
            ("current", super::current),
            ("wal", super::wal),
            ("backup", super::backup),
            ("keys", super::keys),
            ("followers", super::followers),
            ("repair", super::repaired),
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
