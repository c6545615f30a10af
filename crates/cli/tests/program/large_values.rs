//! Large values: from a file and to one, whatever they contain, and told apart from records.

use crate::running::{Place, noise};

#[test]
fn a_file_goes_in_and_comes_out_as_it_was() {
    let place = Place::new();
    let bytes = noise(7, 700_000);
    std::fs::write(place.path("in.bin"), &bytes).unwrap();
    place.run(&["put", "x.db", "one", "-k", "photos", "--from", "in.bin"]).ends(0);
    place.feed(&["put", "x.db", "two", "-k", "photos", "--from", "-"], b"short\0").ends(0);
    place.run(&["get", "x.db", "one", "-k", "photos", "--to", "out.bin"]).ends(0);
    assert!(std::fs::read(place.path("out.bin")).unwrap() == bytes);
    assert_eq!(place.run(&["get", "x.db", "two", "-k", "photos", "--to", "-"]).ends(0).out, "short\0");
    assert_eq!(place.run(&["scan", "x.db", "-k", "photos"]).ends(0).out, "one\t700000\ntwo\t6\n");
    assert_eq!(place.run(&["scan", "x.db", "-k", "photos", "--prefix", "t"]).ends(0).out, "two\t6\n");
    assert_eq!(place.run(&["scan", "x.db", "-k", "photos", "--count"]).ends(0).out, "2\n");
    place.run(&["check", "x.db"]).ends(0);
    place.run(&["del", "x.db", "two", "three", "-k", "photos"]).ends(1).tells("three");
    assert_eq!(place.run(&["scan", "x.db", "-k", "photos"]).ends(0).out, "one\t700000\n");
}

#[test]
fn what_does_not_go_together_is_told_with_the_way_out() {
    let place = Place::new();
    std::fs::write(place.path("in.bin"), noise(7, 100)).unwrap();
    place.run(&["put", "x.db", "one", "-k", "photos", "--from", "in.bin"]).ends(0);
    place.run(&["put", "x.db", "one", "1892", "-k", "ships"]).ends(0);
    place.run(&["get", "x.db", "one", "-k", "photos"]).ends(2).tells("--to FILE");
    place.run(&["put", "x.db", "one", "-k", "ships", "--from", "in.bin"]).ends(2).tells("another name");
    place
        .run(&["put", "x.db", "two", "1892", "-k", "photos"])
        .ends(2)
        .tells("--from FILE")
        .tells("--keyspace");
    place.feed(&["load", "x.db", "-k", "photos"], b"two\t1892\n").ends(2).tells("--keyspace");
    place.run(&["get", "x.db", "none", "-k", "photos", "--to", "out.bin"]).ends(1).tells("not found: none");
    assert!(!place.path("out.bin").exists(), "no file for a key that is not there");
    place.run(&["get", "x.db", "one", "-k", "ships", "--to", "-"]).ends(0);
    place.run(&["put", "y.db", "one", "--from", "no.bin"]).ends(3).tells("no.bin");
    assert!(!place.path("y.db").exists(), "no database for a file that is not there");
    place.run(&["put", "y.db", "one"]).ends(2);
    place.run(&["del", "x.db", "--prefix", "o", "-k", "photos"]).ends(2).tells("sapwood drop");
}

#[test]
fn a_dump_of_all_keyspaces_has_all_but_these_and_says_so() {
    let place = Place::new();
    std::fs::write(place.path("in.bin"), noise(7, 100)).unwrap();
    place.run(&["put", "x.db", "a", "1", "-k", "harbours"]).ends(0);
    place.run(&["put", "x.db", "one", "-k", "photos", "--from", "in.bin"]).ends(0);
    place.run(&["put", "x.db", "b", "2", "-k", "ships"]).ends(0);
    let dump = place.run(&["dump", "x.db", "--format", "mdb"]).ends(3).tells("\"photos\"");
    place.file("x.mdb", &dump.out);
    place.run(&["load", "y.db", "x.mdb", "--format", "mdb"]).ends(0);
    assert_eq!(place.run(&["scan", "y.db", "-k", "harbours"]).ends(0).out, "a\t1\n");
    assert_eq!(place.run(&["scan", "y.db", "-k", "ships"]).ends(0).out, "b\t2\n");
    place.run(&["dump", "x.db", "-k", "photos"]).ends(2).tells("large values");
}

#[cfg(unix)]
#[test]
fn a_file_that_is_replaced_keeps_its_mode_and_a_strangers_stays() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    place.run(&["put", "x.db", "one", "1892"]).ends(0);
    place.file("out", "what was there, and was longer");
    place.file("out.part", "of somebody else");
    std::fs::set_permissions(place.path("out"), PermissionsExt::from_mode(0o600)).unwrap();
    place.run(&["get", "x.db", "one", "--to", "out"]).ends(0);
    place.run(&["get", "x.db", "none", "--to", "out"]).ends(1);
    assert_eq!(std::fs::read(place.path("out")).unwrap(), b"1892");
    assert_eq!(std::fs::read(place.path("out.part")).unwrap(), b"of somebody else");
    assert_eq!(std::fs::metadata(place.path("out")).unwrap().permissions().mode() & 0o777, 0o600);
    place.run(&["get", "x.db", "one", "two", "--to", "out"]).ends(2).tells("one key");
}
