//! Entry points for the fuzzer (and for a test that replays the corpus). Any bytes are decoded or refused;
//! nothing panics or grows without bound. The first byte of an input selects whether the rest is used as it is,
//! or first sealed with the right lengths and checksums, without which a fuzzer would never get past them.

use crate::database_id::DatabaseId;
use crate::encryption::Encryption;
use crate::operation::Operations;
use crate::storage::compressed::{decode, is_compressed};
use crate::storage::frames::Frames;
use crate::storage::node::Node;
use crate::version::current::Current;
use crate::version::manifest;
use crate::wal;
use bytes::Bytes;

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
    let volume = psync::Simulated::new(1);
    if volume.write_file(&wal::file_name(1), &bytes).is_err() {
        return;
    }
    let _ = wal::replay(&volume, (DATABASE, &Encryption::NONE), 1, 1, &mut |record| {
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// What the fuzzer found interesting stays fine.
    #[test]
    fn the_corpus_is_decoded_or_refused() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        type Target = fn(&[u8]);
        let targets: [(&str, Target); 5] = [
            ("node", super::node),
            ("manifest", super::manifest),
            ("current", super::current),
            ("wal", super::wal),
            ("backup", super::backup),
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
