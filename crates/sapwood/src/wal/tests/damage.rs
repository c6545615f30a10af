//! Damage at every bit of the log.

use super::{DATABASE, begin, edit_file, read};
use crate::database_id::DatabaseId;
use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::operation::SeqNo;
use crate::source::WINDOW_LEN;
use crate::wal::chain::read_header;
use crate::wal::log_files::list;
use crate::wal::reader::promised;
use crate::wal::record::*;
use crate::wal::walker::{Found, Link, Stop, Walker};
use crate::wal::{Generations, LogFiles, Record, Tail, WalWriter, file_name};
use proptest::prelude::*;
use psync::{Fault, Filter, OperationKind, Repeat, Simulated};
use std::sync::Arc;

/// Two whole generations, and a third whose records A and B are testified to by C, to which no record testifies.
/// Also tells where records begin: generation and offset.
fn three_generations() -> (Simulated, WalWriter, Vec<(u64, u64)>) {
    let volume = Simulated::new(3);
    let mut wal = begin(&volume);
    let mut begins = Vec::new();
    let mut seq = 1;
    for (generation, lens) in [(1, [30, 0, 7]), (2, [1, 90, 12]), (3, [25, 3, 40])] {
        let mut offset = HEADER_LEN as u64;
        for len in lens {
            wal.append(seq, 2, &vec![seq as u8; len]);
            wal.sync().unwrap();
            begins.push((generation, offset));
            offset += (HEAD_LEN + len) as u64;
            seq += 2;
        }
        if generation < 3 {
            wal.rotate().unwrap();
        }
    }
    (volume, wal, begins)
}

/// Where the thing begins that the byte belongs to: a record, or the header at 0.
fn begin_of(begins: &[(u64, u64)], generation: u64, byte: u64) -> u64 {
    let records = begins.iter().filter(|(found, at)| *found == generation && *at <= byte);
    records.map(|(_, at)| *at).max().unwrap_or(0)
}

fn assert_corrupt(result: Result<(Vec<Record>, Tail)>, at: (u64, u64), story: &str) {
    match result {
        Err(Error::Corrupt { file, offset, .. }) => {
            assert_eq!((file, offset), (file_name(at.0), at.1), "{story}");
        }
        other => panic!("{story}: {other:?}"),
    }
}

#[test]
fn every_flipped_bit_below_a_promise_is_named() {
    let (volume, mut wal, begins) = three_generations();
    let (sound, _) = read(&volume, 1, 3).unwrap();
    assert_eq!(wal.verify(1).unwrap(), 9);
    let unpromised = begins[8];
    for generation in 1..=3 {
        let name = file_name(generation);
        let len = volume.read_file(&name).unwrap().len() as u64;
        for byte in 0..len {
            for bit in 0..8 {
                let flip = |bytes: &mut Vec<u8>| bytes[byte as usize] ^= 1 << bit;
                edit_file(&volume, &name, flip);
                let story = format!("{name}, byte {byte}, bit {bit}");
                let begin = (generation, begin_of(&begins, generation, byte));
                if begin == unpromised {
                    let (records, tail) = read(&volume, 1, 3).unwrap();
                    assert_eq!(records, sound[..8], "{story}");
                    assert_eq!(tail.truncated.unwrap().offset, begin.1, "{story}");
                } else {
                    assert_corrupt(read(&volume, 1, 3), begin, &story);
                }
                // The writer that has just written it knows more.
                match wal.verify(1) {
                    Err(Error::Corrupt { file, offset, .. }) => {
                        assert_eq!((file, offset), (name.clone(), begin.1), "{story}");
                    }
                    other => panic!("{story}: {other:?}"),
                }
                edit_file(&volume, &name, flip);
            }
        }
    }
    assert_eq!(read(&volume, 1, 3).unwrap().0, sound);
}

#[test]
fn a_file_that_lost_its_end_is_named_at_every_length() {
    let (volume, _wal, begins) = three_generations();
    for generation in 1..=2 {
        let name = file_name(generation);
        let whole = volume.read_file(&name).unwrap();
        for len in 0..whole.len() {
            edit_file(&volume, &name, |bytes| bytes.truncate(len));
            let at = (generation, begin_of(&begins, generation, len as u64));
            assert_corrupt(read(&volume, 1, 3), at, &format!("{name} cut to {len} bytes"));
            edit_file(&volume, &name, |bytes| bytes.clone_from(&whole));
        }
    }
}

#[test]
fn a_missing_exchanged_foreign_or_unknown_file_is_named() {
    for missing in 1..=3 {
        let (volume, mut wal, _) = three_generations();
        volume.remove_file(&file_name(missing)).unwrap();
        assert_corrupt(read(&volume, 1, 3), (missing, 0), "missing");
        assert!(wal.verify(1).unwrap_err().is_damage());
    }
    let (volume, _, _) = three_generations();
    let [first, second] = [1, 2].map(|number| volume.read_file(&file_name(number)).unwrap());
    edit_file(&volume, &file_name(1), |bytes| *bytes = second);
    edit_file(&volume, &file_name(2), |bytes| *bytes = first);
    assert_corrupt(read(&volume, 1, 3), (2, 0), "exchanged");

    let (volume, _, _) = three_generations();
    let other = LogFiles::new(&volume, DatabaseId([1; 16])).replay(
        &Encryption::NONE,
        Generations { low: 1, high: 3 },
        &mut |_| Ok(()),
    );
    assert!(matches!(other, Err(Error::Corrupt { what, .. }) if what.contains("another database")));
    // Without a file the manifest's numbers are wrong as well.
    assert_corrupt(read(&volume, 1, 4), (4, 0), "beyond");
    assert!(read(&volume, 3, 2).unwrap_err().is_damage());
    assert!(read(&volume, 0, 2).unwrap_err().is_damage());
}

#[test]
fn files_that_are_not_the_logs_are_left_alone() {
    let (volume, _, _) = three_generations();
    for name in ["wal-", "wal-2", "wal-+000000004", "wal-00000000004", "wal-0000000000", "wal-0000000004.old"]
    {
        edit_file(&volume, name, |bytes| bytes.push(1));
    }
    assert_eq!(list(&volume).unwrap(), [1, 2, 3]);
    assert_eq!(read(&volume, 2, 3).unwrap().0.len(), 6);
}

#[test]
fn a_generation_whose_creation_was_cut_short_is_not_there() {
    let (volume, wal, _) = three_generations();
    drop(wal);
    let header = volume.read_file(&file_name(3)).unwrap()[..HEADER_LEN].to_vec();
    for len in 0..HEADER_LEN {
        edit_file(&volume, &file_name(4), |bytes| *bytes = header[..len].to_vec());
        let (records, tail) = read(&volume, 1, 3).unwrap();
        assert_eq!((records.len(), tail.generation), (9, 3));
        // But not if the manifest knows of it.
        assert_corrupt(read(&volume, 1, 4), (4, 0), "noted");
    }
    let tail = read(&volume, 1, 3).unwrap().1;
    let mut wal = WalWriter::create(Arc::new(volume.clone()), DATABASE, &tail).unwrap();
    wal.append(tail.next_seq, 1, b"replaced");
    wal.sync().unwrap();
    assert_eq!(read(&volume, 1, 4).unwrap().0.len(), 10);
    // And not if a record in it testifies that the header was durable.
    wal.append(tail.next_seq + 1, 1, b"another");
    wal.write().unwrap();
    edit_file(&volume, &file_name(4), |bytes| bytes[20] ^= 1);
    assert_corrupt(read(&volume, 1, 3), (4, 0), "a witness under a broken header");
}

#[test]
fn a_read_that_fails_is_not_the_end_of_the_log() {
    let (volume, _, _) = three_generations();
    let mut nth = 1;
    loop {
        volume.fail_nth(Filter::any(), nth, Fault::Error, Repeat::Once);
        let fired = volume.fired();
        let result = read(&volume, 1, 3);
        volume.clear_faults();
        if volume.fired() == fired {
            assert_eq!(result.unwrap().0.len(), 9);
            break;
        }
        assert!(matches!(result, Err(Error::Io(_))), "operation {nth}: {result:?}");
        nth += 1;
    }
    assert!(nth > 10);
    volume.fail_nth(Filter::kinds([OperationKind::Read]), 2, Fault::Short, Repeat::Once);
    assert!(matches!(read(&volume, 1, 3), Err(Error::Io(_))));
}

#[test]
fn a_witness_is_found_across_windows() {
    // The search begins at the damaged record; the head of the only witness lies round the end of its window.
    for before in 0..HEAD_LEN + 2 {
        let volume = Simulated::new(1);
        let mut wal = begin(&volume);
        wal.append(1, 1, &[7; 10]);
        wal.append(2, 1, &vec![7; WINDOW_LEN - before - 2 * HEAD_LEN - 10]);
        wal.sync().unwrap();
        wal.append(3, 1, &[7; 10]);
        wal.write().unwrap();
        edit_file(&volume, &file_name(1), |bytes| bytes[HEADER_LEN] ^= 1);
        assert_corrupt(read(&volume, 1, 1), (1, HEADER_LEN as u64), &format!("{before} bytes before"));
    }
}

/// A header alone, without records behind it, testifies to the generations before.
#[test]
fn the_next_header_is_a_witness() {
    let volume = Simulated::new(1);
    let mut wal = begin(&volume);
    wal.append(1, 1, &[7; 10]);
    wal.sync().unwrap();
    wal.rotate().unwrap();
    edit_file(&volume, &file_name(1), |bytes| bytes[HEADER_LEN + HEAD_LEN] ^= 1);
    assert_corrupt(read(&volume, 1, 2), (1, HEADER_LEN as u64), "the body's first byte");
}

/// A record with sound checksums for that place.
fn forge(bytes: &mut Vec<u8>, generation: u64, epoch: u32, first_seq: SeqNo, durable: u64) {
    let place = RecordPosition { database: DATABASE, generation, offset: bytes.len() as u64 };
    let body = *b"forged";
    let head = RecordHeader {
        len: body.len() as u32,
        body_crc: crc32c::crc32c(&body),
        count: 1,
        has_time: false,
        epoch,
        first_seq,
        durable: Lsn(durable),
    };
    bytes.extend_from_slice(&head.encode(&place));
    bytes.extend_from_slice(&body);
}

#[test]
fn sound_checksums_do_not_make_a_record_follow_on() {
    let (volume, _, _) = three_generations();
    let sound = volume.read_file(&file_name(3)).unwrap();
    let (records, tail) = read(&volume, 1, 3).unwrap();
    let (next, end) = (tail.next_seq, tail.end.0);
    let cases = [
        (1, next, end, None),
        (2, next, end, None),
        (0, next, end, Some("epoch")),
        (1, next - 1, end, Some("sequence number")),
        (1, next + 1, end, Some("sequence number")),
        (1, next, end + 1, Some("testifies")),
    ];
    for (epoch, first_seq, durable, refused) in cases {
        let mut bytes = sound.clone();
        forge(&mut bytes, 3, epoch, first_seq, durable);
        edit_file(&volume, &file_name(3), |file| *file = bytes);
        let (found, tail) = read(&volume, 1, 3).unwrap();
        match refused {
            None => assert_eq!(found.len(), records.len() + 1),
            Some(why) => {
                assert_eq!(found, records);
                let truncated = tail.truncated.unwrap();
                assert!(truncated.why.contains(why), "{}", truncated.why);
                assert_eq!((truncated.offset, truncated.dropped), (sound.len() as u64, 46));
            }
        }
    }
}

/// Should the next header ever say that a generation ends before what was promised in it, that is damage.
#[test]
fn a_promise_behind_the_declared_end_is_damage() {
    let (volume, _, _) = three_generations();
    let end = volume.read_file(&file_name(1)).unwrap().len() as u64;
    // Void, and nothing was promised: left alone.
    edit_file(&volume, &file_name(1), |bytes| forge(bytes, 1, 1, 7, end));
    assert_eq!(read(&volume, 1, 3).unwrap().0.len(), 9);
    edit_file(&volume, &file_name(1), |bytes| forge(bytes, 1, 1, 8, end + 46));
    assert_corrupt(read(&volume, 1, 3), (1, end), "left out");
}

#[test]
fn bodies_of_every_size_come_back() {
    let volume = Simulated::new(1);
    let mut wal = begin(&volume);
    let lens = [
        0,
        1,
        WINDOW_LEN - HEAD_LEN,
        WINDOW_LEN,
        WINDOW_LEN + 1,
        9 << 20,
        5,
        crate::wal::record::BODY_LEN_MAX,
    ];
    for (index, len) in lens.into_iter().enumerate() {
        wal.append(index as u64 + 1, 1, &vec![index as u8; len]);
    }
    wal.sync().unwrap();
    let (records, tail) = read(&volume, 1, 1).unwrap();
    assert_eq!(records.len(), lens.len());
    for (index, (record, len)) in records.iter().zip(lens).enumerate() {
        assert!(record.body.len() == len && record.body.iter().all(|byte| *byte == index as u8));
    }
    assert_eq!(tail.len, volume.read_file(&file_name(1)).unwrap().len() as u64);
    assert_eq!(wal.verify(1).unwrap(), lens.len() as u64);
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic_or_invent(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        duplicate in any::<Option<(prop::sample::Index, prop::sample::Index)>>(),
    ) {
        let (volume, _, _) = three_generations();
        let sound = volume.read_file(&file_name(3)).unwrap();
        let (expected, whole) = decode_all(&sound, DATABASE, 3).unwrap();
        prop_assert_eq!((expected.len(), whole), (3, sound.len() as u64));
        let mut bytes = sound.clone();
        if let Some((from, to)) = duplicate {
            let piece = bytes[from.index(bytes.len())..].to_vec();
            let to = to.index(bytes.len());
            bytes.truncate(to);
            bytes.extend_from_slice(&piece);
        }
        for (at, value) in edits {
            let at = at.index(bytes.len().max(1));
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        match decode_all(&bytes, DATABASE, 3) {
            Ok((records, valid)) => {
                prop_assert!(valid <= bytes.len() as u64);
                prop_assert_eq!(&records[..], &expected[..records.len()]);
            }
            Err(error) => prop_assert!(error.is_damage()),
        }
    }

    #[test]
    fn no_garbage_makes_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(decode_all(&bytes, DATABASE, 1).is_err());
    }
}

/// All valid records of one file's bytes, and the length of its valid part: what [`LogFiles::replay`] does with a single file.
///
/// # Errors
/// As [`LogFiles::replay`].
#[cfg(test)]
pub(crate) fn decode_all(bytes: &[u8], database: DatabaseId, generation: u64) -> Result<(Vec<Record>, u64)> {
    let header = match read_header(&bytes, database, generation, &|| "memory".to_owned())? {
        Ok(header) => header,
        Err(flaw) => return Err(flaw.at(file_name(generation), 0)),
    };
    let link = Link { header, stop: Stop::EndOfFile };
    let mut walker = Walker::new(bytes, &link, link.follow(None)?);
    let mut records = Vec::new();
    let flaw = loop {
        match walker.next()? {
            Found::Record(head, body) => {
                records.push(walker.decrypt(&Encryption::NONE, &head, body)?);
            }
            Found::End => break None,
            Found::Bad(flaw) => break Some(flaw),
        }
    };
    if let Some(flaw) = flaw {
        let end = walker.lsn();
        if let Some(witness) = crate::wal::window::witness(&mut walker.window, &header, walker.at, end)? {
            return Err(promised(flaw, generation, walker.at, &witness));
        }
    }
    Ok((records, walker.at))
}
