//! Entry points for the fuzzer, and for a test that replays the corpus: what comes from other nodes, and what is read of the disk. Any bytes are
//! decoded or refused.

use crate::KvBatchConfig;
use crate::record;
use crate::snapshot_file::{self, Reader};
use openraft::{BasicNode, Entry, SnapshotMeta};

/// The first byte says what the others are: a snapshot file, chunks of one, which are given their lengths and checksums first, or an entry of the log.
pub fn replicated(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 3 {
        0 => snapshot(bytes),
        1 => snapshot(&snapshot_file::seal(bytes)),
        _ => {
            if let Ok(entry) = record::decode::<Entry<KvBatchConfig>>(1, "an entry", bytes) {
                let encoded = record::encode("an entry", &entry).expect("it was decoded");
                assert!(encoded.len() <= bytes.len(), "numbers have one shortest form");
                record::decode::<Entry<KvBatchConfig>>(1, "an entry", &encoded).expect("it was encoded");
            }
        }
    }
}

/// Reads a snapshot to its end.
fn snapshot(bytes: &[u8]) {
    let path = std::env::temp_dir().join(format!("sapwood-openraft-{}.fuzzed", std::process::id()));
    std::fs::write(&path, bytes).expect("a temporary file");
    type Header = (SnapshotMeta<u64, BasicNode>, Vec<String>);
    if let Ok((mut reader, _)) = Reader::open::<Header>(&path, None, 1) {
        let mut read = 0;
        while let Ok(Some((_, key, value))) = reader.next() {
            // A byte of an LZ4 block makes 255 bytes at most, and a record has 8 at least.
            read += 8 + key.len() + value.map_or_else(|reason| reason.len(), |value| value.len());
            assert!(read <= bytes.len() * 255, "more than was written");
        }
    }
    std::fs::remove_file(&path).expect("it is there");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_corpus_is_decoded_or_refused() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/replicated");
        let files: Vec<_> = std::fs::read_dir(corpus).expect("a corpus").flatten().collect();
        assert!(!files.is_empty());
        for file in files {
            replicated(&std::fs::read(file.path()).expect("a file"));
        }
    }
}
