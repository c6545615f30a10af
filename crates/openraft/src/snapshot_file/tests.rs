//! Whatever happens to a snapshot file is found before it is believed.

use super::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Writes records whose values cannot be compressed, or can.
fn write(path: &Path, is_random: bool) -> Vec<Record> {
    let mut writer = Writer::begin(path, None, &"header".to_owned()).expect("begins");
    let mut records = Vec::new();
    let mut random = StdRng::seed_from_u64(7);
    for keyspace in [0, 2] {
        for number in 0..400u32 {
            let mut value = vec![number as u8; if number == 7 { CHUNK + 1 } else { 1500 }];
            if is_random {
                random.fill(&mut value[..]);
            }
            // Some in a row, and at the ends.
            let value = if number % 100 > 95 { Err(format!("because of {number}")) } else { Ok(value) };
            records.push((keyspace, number.to_be_bytes().to_vec(), value));
        }
    }
    for (keyspace, key, value) in &records {
        let value = value.as_deref().map_err(String::as_str);
        writer.record(*keyspace, key, value).expect("writes");
    }
    writer.end().expect("ends");
    writer.name(path).expect("is named");
    records
}

fn read(path: &Path) -> Result<Vec<Record>> {
    let (mut reader, header) = Reader::open::<String>(path, None, 1)?;
    assert_eq!(header, "header");
    let mut records = Vec::new();
    while let Some(record) = reader.next()? {
        records.push(record);
    }
    Ok(records)
}

/// Begins and lengths of header and chunks.
fn chunks(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let (mut at, mut found) = (MAGIC.len(), Vec::new());
    while at < bytes.len() {
        let len = u32::from_le_bytes(*bytes[at..].first_chunk().expect("a length"));
        found.push(at..at + 8 + len as usize);
        at += 8 + len as usize;
    }
    found
}

#[test]
fn a_file_has_what_was_written_and_damage_is_found() {
    damage_is_found(true);
}

#[test]
fn a_compressed_file_is_short_and_damage_is_found() {
    let len = damage_is_found(false);
    assert!(len < 100 << 10, "{len} bytes of 1.7 MB that are the same bytes again and again");
}

/// Returns the length of the file.
fn damage_is_found(is_random: bool) -> usize {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.snapshot");
    let records = write(&path, is_random);
    assert!(read(&path).expect("reads") == records);
    let whole = fs::read(&path).expect("reads");
    let parts = chunks(&whole);
    assert!(parts.len() > 5, "{} chunks", parts.len());

    let broken = dir.path().join("broken.snapshot");
    let is_refused = |bytes: &[u8], how: &str| {
        fs::write(&broken, bytes).expect("writes");
        let error = read(&broken).expect_err(how);
        let has_place = matches!(&error, Error::Snapshot { path, .. } if *path == broken);
        assert!(has_place, "{how}: {error}");
    };
    // Flipped bytes: in every frame, and some in between.
    for at in (0..whole.len()).step_by(4999).chain(parts.iter().flat_map(|part| part.start..part.start + 12))
    {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        is_refused(&bytes, &format!("byte {at} flipped"));
    }
    // Cut anywhere, also between chunks; with something behind.
    for at in (0..whole.len()).step_by(9973).chain(parts.iter().map(|part| part.start)) {
        is_refused(&whole[..at], &format!("cut at {at}"));
    }
    is_refused(&[&whole[..], b"more"].concat(), "longer");
    // A chunk left out, doubled, and two exchanged.
    let (a, b) = (parts[2].clone(), parts[3].clone());
    is_refused(&[&whole[..a.start], &whole[a.end..]].concat(), "without a chunk");
    is_refused(&[&whole[..a.end], &whole[a.start..]].concat(), "with a chunk twice");
    let exchanged = [&whole[..a.start], &whole[b.clone()], &whole[a], &whole[b.end..]].concat();
    is_refused(&exchanged, "two chunks exchanged");
    whole.len()
}

/// A file of one chunk, whatever that has, with right checksums.
fn file(magic: &[u8; 8], chunk: &[u8]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    let header = record::encode("a header", &"header".to_owned()).expect("is encoded");
    let end = [&[END][..], &1u64.to_le_bytes()].concat();
    for (number, content) in [&header[..], chunk, &end].into_iter().enumerate() {
        let len = content.len() as u32;
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&checksum(number as u64, len, content).to_le_bytes());
        bytes.extend_from_slice(content);
    }
    bytes
}

#[test]
fn compressed_chunks_that_say_what_is_not_so_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.snapshot");
    let mut chunk = vec![RECORDS, 0, 0, 1, 0, 0, 0, 200, 0, 0, 0, b'k'];
    chunk.resize(chunk.len() + 200, b'v');
    let record = (0, b"k".to_vec(), Ok(vec![b'v'; 200]));
    let mut compressed = Vec::new();
    let len = compress(&chunk, &mut compressed);
    compressed.truncate(len);
    for (magic, chunk) in [(MAGIC_1, &chunk), (MAGIC, &chunk), (MAGIC, &compressed)] {
        fs::write(&path, file(magic, chunk)).expect("writes");
        assert_eq!(read(&path).expect("is whole"), std::slice::from_ref(&record));
    }
    let with_len = |len: u32| {
        let mut chunk = compressed.clone();
        chunk[1..COMPRESSED_HEAD].copy_from_slice(&len.to_le_bytes());
        chunk
    };
    let mut nested = Vec::new();
    let len = compress(&compressed, &mut nested);
    nested.truncate(len);
    let wrong = [
        ("shorter than it is", with_len(211)),
        ("longer than it is", with_len(213)),
        ("as long as no chunk", with_len(u32::MAX)),
        ("empty", with_len(0)),
        ("compressed twice", nested),
        ("cut", compressed[..compressed.len() - 1].to_vec()),
        ("no block", compressed[..COMPRESSED_HEAD].to_vec()),
        ("no length", vec![COMPRESSED, 1, 0]),
        ("a reason that is no text", vec![FAILED, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, b'k', 0xff]),
        ("a reason that is cut", vec![FAILED, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, b'k', b'w']),
        ("an unknown kind", vec![FAILED + 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, b'k', b'v']),
    ];
    for (what, chunk) in wrong {
        fs::write(&path, file(MAGIC, &chunk)).expect("writes");
        let error = read(&path).expect_err(what);
        assert!(matches!(error, Error::Snapshot { .. }), "{what}: {error}");
    }
}
