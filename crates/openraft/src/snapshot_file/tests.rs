//! Whatever happens to a snapshot file is found before it is believed.

use super::*;

fn write(path: &Path) -> Vec<Record> {
    let mut writer = Writer::begin(path, None, &"header".to_owned()).expect("begins");
    let mut records = Vec::new();
    for keyspace in [0, 2] {
        for number in 0..400u32 {
            let value = vec![number as u8; if number == 7 { CHUNK + 1 } else { 1500 }];
            records.push((keyspace, number.to_be_bytes().to_vec(), value));
        }
    }
    for (keyspace, key, value) in &records {
        writer.record(*keyspace, key, value).expect("writes");
    }
    writer.finish(path).expect("finishes");
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
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.snapshot");
    let records = write(&path);
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
}
