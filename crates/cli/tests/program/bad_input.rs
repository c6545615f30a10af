//! Malformed input: told with file, line and column, or skipped and counted.

use crate::running::{Place, noise};

#[test]
fn each_format_tells_file_line_and_column() {
    let place = Place::new();
    let header = "VERSION=3\nformat=bytevalue\ntype=btree\nHEADER=END\n";
    for (name, content, place_of_it) in [
        ("a.tsv", "a\t1\nno tab here\n", "a.tsv:2:12: expected a TAB"),
        ("b.tsv", "a\t1\n\nb\\q\t2\n", "b.tsv:3:2: expected \\t"),
        ("c.tsv", "a\tx\\x4\n", "c.tsv:1:4: expected \\t"),
        ("d.tsv", "\t1\n", "d.tsv:1:1: the key is empty"),
        ("a.csv", "name,year\nfram,1892\nvega\n", "a.csv:3:1: expected 2 columns, found 1"),
        ("b.csv", "name,year\n,1892\n", "b.csv:2:1: the key is empty"),
        ("c.csv", "name,year,name\nfram,1892,x\n", "c.csv:1:1: two columns are called \"name\""),
        ("a.jsonl", "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\n", "a.jsonl:2:7: EOF"),
        ("b.jsonl", "[1]\n", "b.jsonl:1:1: expected an object"),
        ("c.jsonl", "{\"name\":\"a\"}\n", "c.jsonl:1:1: there is no member \"key\""),
        ("a.mdb", "hello\n", "a.mdb:1:1: expected VERSION=3, found \"hello\""),
        ("e.mdb", "VERSION=3\nnothing\n", "e.mdb:2:1: expected NAME=VALUE"),
        ("b.mdb", &format!("{header} 61\n 3z\nDATA=END\n"), "b.mdb:6:2: expected two hexadecimal digits"),
        ("c.mdb", &format!("{header} 61\n"), "c.mdb:5:1: the file ends"),
        ("d.mdb", "VERSION=3\ntype=btree\nduplicates=1\nHEADER=END\n", "d.mdb:3:1: the database has several"),
    ] {
        place.file(name, content);
        let said = place.run(&["load", "x.db", name]).ends(3).tells(place_of_it);
        assert!(!said.err.contains("at line 1 column"), "a second, wrong place: {said:?}");
    }
}

#[test]
fn records_before_the_bad_one_are_in_the_database() {
    let place = Place::new();
    place.file("ships.tsv", "a\t1\nb\t2\nbad\nc\t3\n");
    let said = place.run(&["load", "ships.db", "ships.tsv"]).ends(3).tells("ships.tsv:3:4");
    assert!(said.err.contains("2 records before it"), "{said:?}");
    assert!(said.err.contains("--skip-bad"), "{said:?}");
    assert_eq!(place.run(&["dump", "ships.db"]).ends(0).out, "a\t1\nb\t2\n");
}

#[test]
fn skip_bad_goes_on_shows_the_first_and_counts_all() {
    let place = Place::new();
    let mut text = String::new();
    for index in 0..20 {
        text.push_str(&format!("key{index:02}\t{index}\nbad{index}\n"));
    }
    place.file("ships.tsv", text);
    let said = place.run(&["load", "ships.db", "ships.tsv", "--skip-bad"]).ends(0);
    assert!(said.err.contains("ships.tsv:2:5: expected a TAB"), "{said:?}");
    assert!(said.err.contains("20 records"), "{said:?}");
    assert!(said.err.contains("20 malformed skipped"), "{said:?}");
    assert!(said.err.lines().count() < 10, "{said:?}");
    assert_eq!(place.run(&["scan", "ships.db", "--count"]).ends(0).out, "20\n");
}

/// What the database cannot hold is bad input like any other: its neighbours get in, and its line is told.
#[test]
fn keys_and_values_that_are_too_long_are_bad_lines() {
    let place = Place::new();
    let long_key = "k".repeat(sapwood::KEY_LEN_MAX + 1);
    let long_value = "v".repeat(17 << 20);
    let fits = "v".repeat(900_000);
    place.file("ships.tsv", format!("a\t1\n{long_key}\t2\nb\t{long_value}\nc\t{fits}\nd\t4\n"));
    place.run(&["load", "x.db", "ships.tsv"]).ends(3).tells("ships.tsv:2:1: the key has 65537 bytes");
    for memory in ["256M", "4M"] {
        let db = format!("{memory}.db");
        let said = place
            .run(&["load", &db, "ships.tsv", "--skip-bad", "--memory", memory])
            .ends(0)
            .tells("ships.tsv:3:1: the value has 17825792 bytes")
            .tells("2 malformed skipped");
        assert!(said.err.contains("3 records"), "{said:?}");
        assert_eq!(place.run(&["scan", &db, "--count"]).ends(0).out, "3\n");
        assert_eq!(place.run(&["get", &db, "c"]).ends(0).out.len(), 900_001);
    }
}

/// A forgotten quote does not make one value of all rows behind it.
#[test]
fn an_open_quote_in_csv_swallows_no_rows() {
    let place = Place::new();
    let mut text = "name,year\n".to_owned();
    for index in 0..100_000 {
        text.push_str(&if index == 50 {
            "ship50,\"1850\n".to_owned()
        } else {
            format!("ship{index},{index}\n")
        });
    }
    place.file("ships.csv", &text);
    let said = place.run(&["load", "x.db", "ships.csv"]).ends(3);
    assert!(said.err.contains("ships.csv:52:8: the quote that opens here is never closed"), "{said:?}");
    assert!(said.err.contains("50 records before it are in the database"), "{said:?}");
    let said = place.run(&["load", "y.db", "ships.csv", "--skip-bad"]).ends(0);
    assert!(said.err.contains("99999 records") && said.err.contains("1 malformed skipped"), "{said:?}");
    assert_eq!(place.run(&["scan", "y.db", "--count"]).ends(0).out, "99999\n");
    // The next quote in the file closes it, many rows later.
    let text = text.replace("ship90000,90000", "ship90000,\"1990, or so\"");
    place.file("ships.csv", &text);
    place.run(&["load", "z.db", "ships.csv"]).ends(3).tells("ships.csv:52:8: ").tells("closed in line 90002");
    place.run(&["load", "z.db", "ships.csv", "--skip-bad"]).ends(0).tells("99999 records");
    assert!(place.run(&["get", "z.db", "ship90000"]).ends(0).out.contains("1990, or so"));
}

/// What is cut off in the middle of a record is told, and no half of a value is taken for one.
#[test]
fn an_input_that_is_cut_off_is_told() {
    let place = Place::new();
    let mdb = "VERSION=3\nformat=bytevalue\ntype=btree\nHEADER=END\n 61\n 31\n 62\n 3233";
    for (format, text, what) in [
        (
            "jsonl",
            "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"b\",\"val",
            "2:15: EOF while parsing a string",
        ),
        ("csv", "key,value\na,1\nb,\"2", "3:3: the quote that opens here is never closed"),
        ("tsv", "a\t1\nb\tx\\x4", "2:4: expected \\t"),
        ("mdb", mdb, "8:1: the file ends within the data"),
    ] {
        let said = place.feed(&["load", "x.db", "--format", format, "-k", format], text.as_bytes());
        said.ends(3).tells(&format!("standard input:{what}")).tells("1 records before it");
        assert_eq!(place.run(&["dump", "x.db", "-k", format]).ends(0).out, "a\t1\n", "{format}");
    }
}

/// A line that is too long is one bad line, and the next is read.
#[test]
fn skip_bad_goes_on_behind_a_line_that_is_too_long() {
    let place = Place::new();
    let long = "x".repeat(101 << 20);
    let mdb = "VERSION=3\nformat=print\ntype=btree\nHEADER=END\n a\n 1\n b\n ";
    for (format, head, tail) in [
        ("tsv", "a\t1\nb\t", "\nc\t3\n"),
        ("csv", "key,value\na,1\nb,", "\nc,3\n"),
        ("jsonl", "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"", "\"}\n{\"key\":\"c\",\"value\":\"3\"}\n"),
        ("mdb", mdb, "\n c\n 3\nDATA=END\n"),
    ] {
        let text = format!("{head}{long}{tail}");
        let said =
            place.feed(&["load", "x.db", "--format", format, "-k", format, "--skip-bad"], text.as_bytes());
        said.ends(0).tells("more than").tells("1 malformed skipped");
        assert_eq!(place.run(&["dump", "x.db", "-k", format]).ends(0).out, "a\t1\nc\t3\n", "{format}");
    }
}

/// An input that is one endless line is refused with little memory, whatever the format.
#[test]
fn a_line_without_end_is_refused() {
    let place = Place::new();
    for format in ["tsv", "csv", "jsonl", "mdb"] {
        let mut text = match format {
            "csv" => b"name,year\n\"".to_vec(),
            "mdb" => b"VERSION=3\nformat=print\ntype=btree\nHEADER=END\n ".to_vec(),
            _ => b"".to_vec(),
        };
        let line = text.iter().filter(|byte| **byte == b'\n').count() + 1;
        text.resize(101 << 20, b'x');
        let said = place.feed(&["load", "x.db", "--format", format], &text).ends(3);
        assert!(said.err.contains(&format!("standard input:{line}:1: ")), "{format}: {said:?}");
        assert!(said.err.contains("more than"), "{format}: {said:?}");
    }
}

#[test]
fn bytes_that_mean_nothing_are_refused_in_few_words() {
    let place = Place::new();
    for format in ["tsv", "csv", "jsonl", "mdb"] {
        for seed in 1..6 {
            let said = place.feed(&["load", "x.db", "--format", format], &noise(seed, 200_000));
            assert!(matches!(said.code, Some(3)), "{format}: {said:?}");
            let said = said.ends(3);
            assert!(said.err.len() < 1000, "{format}: {} bytes of message", said.err.len());
            assert!(!said.err.chars().any(|c| c.is_control() && c != '\n'), "{format}: {said:?}");
        }
    }
}

#[test]
fn a_key_column_that_is_not_there_names_those_that_are() {
    let place = Place::new();
    place.file("ships.csv", "name,year\nfram,1892\n");
    place.run(&["load", "x.db", "ships.csv", "--key-column", "flag"]).ends(3).tells("name, year");
    place.run(&["load", "x.db", "ships.csv", "--key-column", "3"]).ends(3).tells("name, year");
    place.run(&["load", "x.db", "ships.csv", "--key-column", "year"]).ends(0);
    assert_eq!(place.run(&["get", "x.db", "1892"]).ends(0).out, "{\"name\":\"fram\",\"year\":\"1892\"}\n");
}

#[test]
fn files_that_are_no_text_say_what_to_do() {
    let place = Place::new();
    place.file("ships.tsv.gz", noise(1, 1000));
    place.run(&["load", "x.db", "ships.tsv.gz"]).ends(2).tells("is compressed").tells("--format tsv");
    assert!(!place.path("x.db").exists());
    let mut lmdb = vec![0; 16];
    lmdb.extend(0xbeef_c0de_u32.to_le_bytes());
    lmdb.resize(8192, 0);
    place.file("data.mdb", lmdb);
    place
        .run(&["load", "x.db", "data.mdb"])
        .ends(3)
        .tells("mdb_dump -n data.mdb | sapwood load x.db - --format mdb");
    assert!(!place.path("x.db").exists());
}

/// What would pass for records, or give a wrong reason, is named before anything is written, also in a pipe.
#[test]
fn what_is_not_what_it_says_is_named_before_anything_is_written() {
    let place = Place::new();
    let utf16 = |text: &str| -> Vec<u8> { text.encode_utf16().flat_map(u16::to_le_bytes).collect() };
    let mut tar = b"ships.tsv".to_vec();
    tar.resize(257, 0);
    tar.extend_from_slice(b"ustar\0");
    for (what, content, to_do) in [
        ("gzip data", b"\x1f\x8b\x08\0ab\tcd\nef\tgh\n".to_vec(), "zcat"),
        ("zstd data", b"\x28\xb5\x2f\xfd\x04ab\tcd\nef\tgh\n".to_vec(), "zstdcat"),
        ("bzip2 data", b"BZh91AY&SY\x80\t1\n".to_vec(), "bzcat"),
        ("xz data", b"\xfd7zXZ\0\tab\n".to_vec(), "xzcat"),
        ("lz4 data", b"\x04\x22\x4d\x18ab\tcd\n".to_vec(), "lz4cat"),
        ("a zip archive", b"PK\x03\x04ab\tcd\n".to_vec(), "unzip -p"),
        ("a tar archive", tar, "unpack it"),
        ("an SQLite database", b"SQLite format 3\0\x10\0ab\tcd\n".to_vec(), "sqlite3 -csv -header"),
        (
            "UTF-16 text",
            [b"\xff\xfe".to_vec(), utf16("fram\t1892\nvega\t1872\n")].concat(),
            "iconv -f UTF-16 ",
        ),
        ("UTF-16 text without", utf16("fram\t1892\nvega\t1872\n"), "iconv -f UTF-16LE "),
        ("a parquet file", b"PAR1\x15\x04\0\t\n".to_vec(), "duckdb"),
        ("a PDF", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\nab\tcd\n".to_vec(), "it has no records"),
        ("binary data", b"a\t1\nb\0\t2\n".to_vec(), "NUL"),
        ("text whose lines end as on old Macs", b"a\t1\rb\t2\r".to_vec(), "tr '\\r' '\\n'"),
        ("JSON, by its looks", b"{\"key\":\t\"a\"}\n".to_vec(), "--format jsonl"),
        ("a dump of LMDB", b"VERSION=3\nmapsize=1\t\n".to_vec(), "--format mdb"),
    ] {
        place.file("input", &content);
        place.run(&["load", "x.db", "input"]).ends(3).tells(&format!("input is {what}")).tells(to_do);
        assert!(!place.path("x.db").exists(), "{what}");
        let said = place.feed(&["load", "x.db"], &content).ends(3);
        assert!(said.err.contains(&format!("standard input is {what}")), "{said:?}");
        assert!(!place.path("x.db").exists(), "{what}");
    }
    // A command that is told works.
    place.file("ships.tsv", "fram\t1892\n");
    let shell = |script: &str| {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", script]).current_dir(place.path(""));
        command.status().is_ok_and(|status| status.success())
    };
    if shell("gzip -kf ships.tsv && mv ships.tsv.gz ships") {
        let said = place.run(&["load", "x.db", "ships"]).ends(3);
        let command = said.err.split_once("load it so: ").unwrap().1.trim();
        assert!(shell(&command.replace("sapwood", crate::running::PROGRAM)), "{command}");
        assert_eq!(place.run(&["dump", "x.db"]).ends(0).out, "fram\t1892\n");
    }
}

/// Behind the first block a NUL is a bad record, told with its place.
#[test]
fn a_nul_byte_is_in_no_record() {
    let place = Place::new();
    let many = |line: &str| line.repeat(300_000 / line.len());
    for (format, head, line, bad, at) in [
        ("tsv", "", "a\t1\n", "b\t\0\n", ":3: "),
        ("csv", "key,value\n", "a,1\n", "b,\0\n", ":1: column 2: "),
        ("jsonl", "", "{\"key\":\"a\",\"value\":\"1\"}\n", "{\"key\":\"\0\"}\n", ":8: control character"),
        ("mdb", "VERSION=3\nformat=print\nHEADER=END\n", " a\n 1\n", " b\n \0\nDATA=END\n", ":2: "),
    ] {
        let text = format!("{head}{}{bad}", many(line));
        let number = text.trim_end_matches("DATA=END\n").lines().count();
        let said = place.feed(&["load", "x.db", "--format", format, "-k", format], text.as_bytes()).ends(3);
        assert!(said.err.contains(&format!("standard input:{number}{at}")), "{said:?}");
        assert!(place.run(&["scan", "x.db", "-k", format]).ends(0).out == "a\t1\n", "{format}");
    }
}

#[test]
fn a_name_that_cannot_be_a_keyspace_is_told_with_its_line() {
    let place = Place::new();
    let name = "n".repeat(300);
    let text =
        format!("VERSION=3\nformat=print\ndatabase={name}\ntype=btree\nHEADER=END\n a\n 1\nDATA=END\n");
    place.file("a.mdb", text);
    place.run(&["load", "x.db", "a.mdb"]).ends(3).tells("a.mdb:7:1: ").tells("--keyspace");
    place.run(&["load", "x.db", "a.mdb", "--keyspace", "ships"]).ends(0);
    assert_eq!(place.run(&["get", "x.db", "a", "-k", "ships"]).ends(0).out, "1\n");
}

/// It was not looked at, and the records went in under other keys.
#[test]
fn a_key_column_of_a_form_that_has_none_is_refused() {
    let place = Place::new();
    place.file("ships.tsv", "fram\t1892\n");
    place.file("ships.mdb", "VERSION=3\nHEADER=END\n 61\n 62\nDATA=END\n");
    for wrong in [
        &["load", "x.db", "ships.tsv", "--key-column", "2"][..],
        &["load", "x.db", "ships.mdb", "--key-column", "2"],
        &["load", "x.db", "ships.mdb", "--format", "tsv", "--key-column", "2"],
        &["load", "x.db", "--key-column", "2"],
    ] {
        place.run(wrong).ends(2).tells("--key-column is for csv and jsonl").tells("--format");
    }
    assert!(!place.path("x.db").exists());
}

/// Records of one replaced those of the other.
#[test]
fn two_databases_do_not_become_one_keyspace() {
    let place = Place::new();
    let one = |name: &str, value: &str| {
        format!("VERSION=3\nformat=print\n{name}type=btree\nHEADER=END\n{value}DATA=END\n")
    };
    let ships = one("database=ships\n", " fram\n 1892\n");
    for second in [one("database=harbours\n", " fram\n 0\n"), one("", "")] {
        place.file("two.mdb", format!("{ships}{second}"));
        let said = place.run(&["load", "x.db", "two.mdb", "-k", "one"]).ends(3);
        said.tells("two.mdb: up to line 1")
            .tells("a second database has begun")
            .tells("leave --keyspace out");
        assert_eq!(place.run(&["dump", "x.db", "-k", "one"]).ends(0).out, "fram\t1892\n");
    }
    place.file("one.mdb", ships);
    place.run(&["load", "x.db", "one.mdb", "-k", "other"]).ends(0);
}

/// It was called malformed, and left out: a dump of a database did not go into another.
#[test]
fn a_value_that_needs_more_memory_is_not_skipped() {
    let place = Place::new();
    for (memory, len) in [("4M", 1_000_000), ("256M", 16 << 20)] {
        place.file("ships.tsv", format!("a\t1\nb\t{}\nc\t3\n", "v".repeat(len)));
        let (little, enough) = (format!("{memory}.db"), format!("{memory}-enough.db"));
        place
            .run(&["load", &little, "ships.tsv", "--skip-bad", "--memory", memory])
            .ends(3)
            .tells(&format!("ships.tsv:2:1: the value has {len} bytes"))
            .tells("16777216 with a larger one")
            .tells("--memory 512M")
            .tells("1 records before it are in the database");
        place.run(&["load", &enough, "ships.tsv", "--memory", "512M"]).ends(0).tells("3 records");
        assert_eq!(place.run(&["get", &enough, "b"]).ends(0).out.len(), len + 1);
    }
}

/// They were told to be a batch of which 0 bytes can be committed.
#[test]
fn many_short_records_in_a_commit_fit_into_little_memory() {
    let place = Place::new();
    place.file("ships.tsv", (0..60_000).map(|index| format!("{index}\t\n")).collect::<String>());
    place
        .run(&["load", "x.db", "ships.tsv", "--batch", "100000", "--memory", "4M"])
        .ends(0)
        .tells("60000 records");
}

/// It depended on how it came whether a CR in the first line made it text of an old Mac.
#[test]
fn a_cr_in_a_long_first_line_is_a_byte_like_any_other() {
    let place = Place::new();
    for len in [5000, 300_000, 2 << 20] {
        let value = format!("x\r{}", "y".repeat(len));
        let text = format!("a\t{value}\nb\t2\n");
        place.file("ships.tsv", &text);
        place.run(&["load", "x.db", "ships.tsv"]).ends(0).tells("2 records");
        place.feed(&["load", "y.db"], text.as_bytes()).ends(0).tells("2 records");
        for db in ["x.db", "y.db"] {
            assert_eq!(place.run(&["get", db, "a"]).ends(0).out, value.replace('\r', "\\r") + "\n");
        }
    }
    let of_a_mac = "a\t1\rb\t2\r".repeat(30_000);
    place.file("ships.tsv", &of_a_mac);
    place.run(&["load", "z.db", "ships.tsv"]).ends(3).tells("tr '\\r' '\\n'");
    place.feed(&["load", "z.db"], of_a_mac.as_bytes()).ends(3).tells("tr '\\r' '\\n'");
    assert!(!place.path("z.db").exists());
}
