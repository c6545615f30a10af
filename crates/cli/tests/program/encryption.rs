//! Encrypted databases: key files, all commands with them, a change of the key, backups.

use crate::running::{Place, Said};

#[test]
fn a_key_file_opens_what_was_made_with_it() {
    let place = Place::new();
    place.run(&["key", "new", "one.key"]).ends(0);
    place.run(&["key", "new", "one.key"]).ends(3).tells("one.key");
    place.run(&["put", "x.db", "fram", "1892", "--key-file", "one.key"]).ends(0);
    place.run(&["get", "x.db", "fram"]).ends(3).tells("no key was given");
    place.run(&["key", "new", "two.key"]).ends(0);
    place.run(&["get", "x.db", "fram", "--key-file", "two.key"]).ends(3).tells("another key");
    place.run(&["get", "x.db", "fram", "--key-file", "no.key"]).ends(3).tells("no.key");
    assert_eq!(place.run(&["get", "x.db", "fram", "--key-file", "one.key"]).ends(0).out, "1892\n");
    place.run(&["check", "x.db", "--key-file", "one.key"]).ends(0);

    place.run(&["backup", "x.db", "backups", "--key-file", "one.key"]).ends(0);
    place.run(&["key", "change", "x.db", "--to", "two.key", "--key-file", "one.key"]).ends(0);
    place.run(&["compact", "x.db", "--key-file", "two.key"]).ends(0);
    assert_eq!(place.run(&["get", "x.db", "fram", "--key-file", "two.key"]).ends(0).out, "1892\n");
    place.run(&["verify", "backups"]).ends(3).tells("no key was given");
    place.run(&["verify", "backups", "--key-file", "one.key"]).ends(0);
    place.run(&["backup", "x.db", "backups", "--key-file", "two.key"]).ends(0);
    let said = place.run(&["verify", "backups", "--all", "--key-file", "two.key"]).ends(3);
    assert!(said.tells("backup 1 was not verified").out.contains("backup 2 is whole"));
    place.run(&["restore", "backups", "y.db", "--number", "1", "--key-file", "one.key"]).ends(0);
    assert_eq!(place.run(&["get", "y.db", "fram", "--key-file", "one.key"]).ends(0).out, "1892\n");
    place.run(&["put", "z.db", "fram", "1892"]).ends(0);
    place.run(&["get", "z.db", "fram", "--key-file", "one.key"]).ends(3).tells("not encrypted");
}

/// The environment may name a file that is not there yet, or not at hand.
#[test]
fn what_opens_no_database_needs_no_key() {
    let place = Place::new();
    let run = |arguments: &[&str]| {
        let output =
            place.command(arguments).env("SAPWOOD_KEY_FILE", place.path("ship.key")).output().unwrap();
        Said::from(output)
    };
    run(&["completions", "bash"]).ends(0);
    run(&["put", "x.db", "key", "value"]).ends(3).tells("ship.key");
    let key = place.path("ship.key");
    run(&["key", "new", key.to_str().unwrap()]).ends(0);
    run(&["put", "x.db", "key", "value"]).ends(0);
}

/// Scripts set it so to have none. An option without a name is a name that a script has lost: nothing is written unencrypted for that.
#[test]
fn an_empty_name_is_none_in_the_environment_only() {
    let place = Place::new();
    let run = |arguments: &[&str]| {
        Said::from(place.command(arguments).env("SAPWOOD_KEY_FILE", "").output().unwrap())
    };
    run(&["put", "x.db", "key", "value"]).ends(0);
    assert_eq!(run(&["get", "x.db", "key"]).ends(0).out, "value\n");
    run(&["put", "y.db", "key", "value", "--key-file", ""]).ends(2);
    assert!(!place.path("y.db").exists());
    assert!(place.run(&["--help"]).ends(0).out.contains("[env: SAPWOOD_KEY_FILE]"));
}
