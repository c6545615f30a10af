//! Entry points for the fuzzer, and for a test that replays the corpus. Any bytes are decoded or refused, and what is decoded is
//! encoded as these bytes again.

use crate::key::{TypedKey, Verbatim, decode_key, encode_key};
use crate::schema::Stored;
use sapwood_typed::AsKey;
use std::cmp::Reverse;
use std::time::{Duration, SystemTime};

/// A key of each kind of type: the first byte says which.
pub fn typed_key(input: &[u8]) {
    fn of<K: TypedKey>(bytes: &[u8])
    where
        for<'a> &'a K: AsKey<K>,
    {
        if let Ok(key) = decode_key::<K>(bytes) {
            assert_eq!(encode_key::<K>(&key), bytes);
        }
    }
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 12 {
        0 => of::<(u8, i16, u32, i64, u128)>(bytes),
        1 => of::<(f32, f64)>(bytes),
        2 => of::<(bool, char, usize, isize)>(bytes),
        3 => of::<(String, Vec<u8>, String)>(bytes),
        4 => of::<Vec<(String, u16)>>(bytes),
        5 => of::<Option<Option<[u16; 3]>>>(bytes),
        6 => of::<Reverse<(String, Reverse<Vec<u8>>, i8)>>(bytes),
        7 => of::<(Duration, SystemTime)>(bytes),
        8 => of::<(u16, Verbatim<String>)>(bytes),
        9 => of::<Vec<Vec<Option<String>>>>(bytes),
        10 => of::<(u8, Verbatim<Vec<u8>>)>(bytes),
        _ => of::<[Reverse<bool>; 2]>(bytes),
    }
}

/// The metadata of a keyspace, which begins with a schema or not.
pub fn typed_schema(input: &[u8]) {
    if let Ok((Some(schema), rest)) = Stored::decode(input) {
        assert!(schema.encode(rest).map_or(input.len() > 4096, |bytes| bytes == input));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn the_corpus_is_decoded_or_refused() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        type Target = fn(&[u8]);
        let targets: [(&str, Target); 2] =
            [("typed_key", super::typed_key), ("typed_schema", super::typed_schema)];
        for (name, target) in targets {
            let files: Vec<_> = std::fs::read_dir(corpus.join(name)).unwrap().flatten().collect();
            assert!(!files.is_empty(), "{name} has no corpus");
            for file in files {
                target(&std::fs::read(file.path()).unwrap());
            }
        }
    }
}
