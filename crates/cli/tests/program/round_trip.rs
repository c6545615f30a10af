//! What `dump` writes, `load` reads: any bytes, every format, through the shell.

use crate::running::{Place, noise};

#[test]
fn every_format_carries_any_bytes() {
    let place = Place::new();
    let db = sapwood::Database::open(place.path("any.db")).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    let mut batch = db.batch();
    for index in 0..300u64 {
        batch.insert(
            &keyspace,
            noise(index + 1, 1 + index as usize % 40),
            noise(index + 999, index as usize),
        );
    }
    for (key, value) in
        [("a\tb", "c\\td"), ("\\x41", "C:\\temp\\new"), ("\r\n", "\r"), (" ", ""), ("\u{feff}b", "\"")]
    {
        batch.insert(&keyspace, key, value);
    }
    batch.commit().unwrap();
    drop(keyspace);
    db.close().unwrap();
    let all = place.run(&["dump", "any.db"]).ends(0).out;
    assert_eq!(all.lines().count(), 305);
    for format in ["tsv", "csv", "jsonl", "mdb"] {
        let text = place.run(&["dump", "any.db", "--format", format]).ends(0).out;
        // By the file's name, and by --format on standard input.
        place.file(&format!("all.{format}"), &text);
        place.run(&["load", &format!("{format}.db"), &format!("all.{format}")]).ends(0).tells("305 records");
        assert_eq!(place.run(&["dump", &format!("{format}.db")]).ends(0).out, all, "{format}");
        place.feed(&["load", "in.db", "-", "--format", format, "-k", format], text.as_bytes()).ends(0);
        assert_eq!(place.run(&["dump", "in.db", "-k", format]).ends(0).out, all, "{format}");
    }
}

/// A table of somebody else's is not full of our escapes.
#[test]
fn a_foreign_table_with_two_columns_is_taken_as_it_is() {
    let place = Place::new();
    place.file("paths.csv", "key,value\ntemp,C:\\temp\\new\n\"a,b\",\"two\nlines\"\n");
    place.run(&["load", "x.db", "paths.csv"]).ends(0).tells("2 records");
    assert_eq!(place.run(&["get", "x.db", "temp"]).ends(0).out, "C:\\\\temp\\\\new\n");
    assert_eq!(place.run(&["get", "x.db", "a,b"]).ends(0).out, "two\\nlines\n");
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_first_key() {
    let place = Place::new();
    for (format, text) in [
        ("tsv", "\u{feff}fram\t1892\n"),
        ("csv", "\u{feff}key,value\nfram,1892\n"),
        ("jsonl", "\u{feff}{\"key\":\"fram\",\"value\":\"1892\"}\n"),
        ("mdb", "\u{feff}VERSION=3\nformat=print\ntype=btree\nHEADER=END\n fram\n 1892\nDATA=END\n"),
    ] {
        place.feed(&["load", "x.db", "--format", format, "-k", format], text.as_bytes()).ends(0);
        assert_eq!(place.run(&["dump", "x.db", "-k", format]).ends(0).out, "fram\t1892\n", "{format}");
    }
}

#[test]
fn lines_may_end_as_on_windows_or_not_at_all() {
    let place = Place::new();
    place.ships("a\t1\r\nb\t2");
    assert_eq!(place.run(&["dump", "ships.db"]).ends(0).out, "a\t1\nb\t2\n");
}

#[test]
fn nothing_loaded_is_an_empty_keyspace() {
    let place = Place::new();
    place.feed(&["load", "x.db"], b"").ends(0).tells("0 records");
    assert_eq!(place.run(&["dump", "x.db"]).ends(0).out, "");
    assert_eq!(place.run(&["scan", "x.db", "--count"]).ends(0).out, "0\n");
}

#[test]
fn every_durability_and_batch_loads_the_same() {
    let place = Place::new();
    let text: String = (0..2500).map(|index| format!("{index:05}\t{}\n", index * 7)).collect();
    for (durability, batch) in [("immediate", "100"), ("buffered", "1"), ("none", "100000")] {
        let options = ["load", "x.db", "-k", durability, "--durability", durability, "--batch", batch];
        place.feed(&options, text.as_bytes()).ends(0).tells("2500 records");
        assert_eq!(place.run(&["dump", "x.db", "-k", durability]).ends(0).out, text);
    }
}

#[test]
fn every_compression_loads_the_same() {
    let place = Place::new();
    let text: String = (0..2500).map(|index| format!("{index:05}\tvalue of {}\n", index * 7)).collect();
    for codec in ["none", "lz4", "zstd", "zstd:9", "zstd-dictionary"] {
        let options = ["load", "x.db", "-k", codec, "--compression", codec];
        place.feed(&options, text.as_bytes()).ends(0).tells("2500 records");
        assert_eq!(place.run(&["dump", "x.db", "-k", codec]).ends(0).out, text);
    }
    for (codec, why) in
        [("gzip", "lz4"), ("lz4:3", "no levels"), ("zstd:x", "1 to 19"), ("zstd:77", "1 to 19")]
    {
        place
            .feed(&["load", "x.db", "-k", "other", "--compression", codec], text.as_bytes())
            .ends(2)
            .tells(why);
    }
    assert_eq!(place.run(&["scan", "x.db", "--count", "-k", "lz4"]).ends(0).out, "2500\n");
}

/// Numbers of more digits than a processor's have stay apart, as keys and in values, through every format.
#[test]
fn numbers_keep_their_digits() {
    let place = Place::new();
    let numbers = ["-0", "1", "1.0", "123456789012345678901", "123456789012345678902", "1e400"];
    let lines = numbers.map(|number| format!("{{\"id\":{number},\"deep\":{{\"n\":[{number}]}}}}\n"));
    place
        .feed(&["load", "x.db", "--format", "jsonl", "--key-column", "id"], lines.concat().as_bytes())
        .ends(0);
    let all = place.run(&["dump", "x.db"]).ends(0).out;
    let pairs: String =
        numbers.iter().zip(&lines).map(|(number, line)| format!("{number}\t{line}")).collect();
    assert_eq!(all, pairs);
    for format in ["tsv", "csv", "jsonl", "mdb"] {
        let text = place.run(&["dump", "x.db", "--format", format]).ends(0).out;
        place.feed(&["load", "y.db", "--format", format, "-k", format], text.as_bytes()).ends(0);
        assert_eq!(place.run(&["dump", "y.db", "-k", format]).ends(0).out, all, "{format}");
    }
}

/// Bytes that the files of a database take.
#[cfg(unix)]
fn disk_use(place: &Place, db: &str) -> u64 {
    let files = std::fs::read_dir(place.path(db)).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    files.map(|metadata| 512 * std::os::unix::fs::MetadataExt::blocks(&metadata)).sum()
}

/// Space of what was removed stayed for good, and the program had no command to give it back.
#[cfg(unix)]
#[test]
fn flush_and_compact_give_space_back() {
    let place = Place::new();
    let text: String = (0..20).map(|index| format!("{index:02}\t{}\n", "x".repeat(2 << 20))).collect();
    place.feed(&["load", "ships.db", "--compression", "none"], text.as_bytes()).ends(0);
    let keys: Vec<String> = (0..19).map(|index| format!("{index:02}")).collect();
    let del: Vec<&str> = ["del", "ships.db"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    // Closing gives back what stands for much.
    place.run(&del).ends(0);
    let after = disk_use(&place, "ships.db");
    assert!(after < 6 << 20, "{after} bytes");
    // What stands for little waits in the log.
    for command in ["flush", "compact"] {
        let few: Vec<String> = (0..20).map(|index| format!("{index:02}")).collect();
        let text: String = few.iter().map(|key| format!("{key}\t1\n")).collect();
        place.feed(&["load", "few.db"], text.as_bytes()).ends(0);
        let del: Vec<&str> =
            ["del", "few.db"].into_iter().chain(few[1..].iter().map(String::as_str)).collect();
        place.run(&del).ends(0);
        let said = place.run(&[command, "few.db"]).ends(0);
        assert!(!said.out.starts_with("few.db: 0 ") && said.out.contains("changes flushed"), "{said:?}");
        assert!(said.out.contains(" on the disk, ") && said.out.contains("iB before"), "{said:?}");
        assert_eq!(place.run(&["scan", "few.db", "--count"]).ends(0).out, "1\n");
        let checked = place.run(&["check", "few.db"]).ends(0).out;
        assert!(
            checked.contains(" 0 changes in 0 log pieces") && checked.contains(" 0 changes that"),
            "{checked}"
        );
    }
    let said = place.run(&["compact", "ships.db"]).ends(0);
    assert!(said.out.starts_with("ships.db: 0 changes flushed"), "nothing is left to do: {said:?}");
}

#[test]
fn a_keyspace_without_records_goes_through_a_dump() {
    let place = Place::new();
    place.run(&["put", "a.db", "fram", "1892", "-k", "ships"]).ends(0);
    place.feed(&["load", "a.db", "-", "-k", "harbours"], b"").ends(0);
    let text = place.run(&["dump", "a.db", "--format", "mdb"]).ends(0).out;
    place.feed(&["load", "b.db", "-", "--format", "mdb"], text.as_bytes()).ends(0);
    assert_eq!(place.run(&["scan", "b.db", "-k", "harbours", "--count"]).ends(0).out, "0\n");
    assert_eq!(place.run(&["scan", "b.db", "-k", "ships", "--count"]).ends(0).out, "1\n");
}

#[test]
fn two_databases_whose_names_are_no_text_do_not_become_one() {
    let place = Place::new();
    let one = |name: &[u8]| {
        [b"VERSION=3\nformat=print\ndatabase=", name, b"\nHEADER=END\n k\n v\nDATA=END\n"].concat()
    };
    let dump = [one(b"\xff"), one(b"\xfe")].concat();
    place
        .feed(&["load", "x.db", "-", "--format", "mdb"], &dump)
        .ends(3)
        .tells("not UTF-8")
        .tells("--keyspace");
}

/// It was not there, or without the options.
#[test]
fn a_keyspace_without_a_name_and_records_is_made_as_it_was_asked_for() {
    let place = Place::new();
    place.run(&["put", "a.db", "fram", "1892", "-k", "ships"]).ends(0);
    place.feed(&["load", "a.db"], b"").ends(0);
    let text = place.run(&["dump", "a.db", "--format", "mdb"]).ends(0).out;
    for format in ["mdb", "tsv"] {
        let text = if format == "mdb" { text.as_bytes() } else { b"" };
        place.feed(&["load", "b.db", "-", "--format", format, "--compression", "zstd:7"], text).ends(0);
        assert_eq!(place.run(&["scan", "b.db", "--count"]).ends(0).out, "0\n");
        let db = sapwood::Database::open(place.path("b.db")).unwrap();
        let options = db.keyspace("default").unwrap().options().unwrap();
        assert_eq!(options.is_compressed_by(), sapwood::Compression::Zstd { level: 7 });
        db.drop_keyspace("default").unwrap();
    }
}

/// It wrote nothing, which `load` refuses, and ended with 0.
#[test]
fn a_database_without_keyspaces_is_told_in_every_form() {
    let place = Place::new();
    place.ships("fram\t1892\n");
    place.run(&["drop", "ships.db", "default"]).ends(0);
    for format in ["tsv", "csv", "jsonl", "mdb"] {
        let said = place.run(&["dump", "ships.db", "--format", format]).ends(1).tells("it has no keyspaces");
        assert_eq!(said.out, "", "{format}");
    }
}
