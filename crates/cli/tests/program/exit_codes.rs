//! What programs that call the program rely on: 0 fine, 1 not found or damage, 2 usage, 3 all else.

use crate::running::{Place, is_open, until, wait};
use std::process::Stdio;

#[test]
fn a_first_session() {
    let place = Place::new();
    place.file("ships.tsv", "fram\t1892\nbeagle\t1820\nvega\t1872\n");
    let said = place.run(&["load", "ships.db", "ships.tsv"]).ends(0);
    assert!(said.err.contains("3 records"), "{said:?}");
    assert_eq!(place.run(&["get", "ships.db", "beagle", "fram"]).ends(0).out, "1820\n1892\n");
    place.run(&["put", "ships.db", "gj\\xc3\\xb8a", "1872\\tsloop"]).ends(0);
    assert_eq!(place.run(&["get", "ships.db", "gjøa"]).ends(0).out, "1872\\tsloop\n");
    assert_eq!(place.run(&["scan", "ships.db", "--prefix", "gj"]).ends(0).out, "gjøa\t1872\\tsloop\n");
    assert_eq!(place.run(&["scan", "ships.db", "--count"]).ends(0).out, "4\n");
    place.run(&["del", "ships.db", "vega", "gjøa"]).ends(0);
    assert_eq!(place.run(&["dump", "ships.db"]).ends(0).out, "beagle\t1820\nfram\t1892\n");
    assert!(place.run(&["stats", "ships.db"]).ends(0).out.contains("default"));
    let stats = place.run(&["stats", "ships.db", "--json"]).ends(0).out;
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    assert_eq!(stats["keyspaces"][0]["name"], "default");
    assert!(place.run(&["check", "ships.db"]).ends(0).out.contains("sound"));
}

#[test]
fn ranges_and_keyspaces_go_at_once() {
    let place = Place::new();
    place.ships("a1\t1\na2\t2\nb1\t3\nc1\t4\nd1\t5\n");
    place.run(&["del", "ships.db", "--prefix", "a"]).ends(0);
    place.run(&["del", "ships.db", "--from", "d"]).ends(0);
    assert_eq!(place.run(&["dump", "ships.db"]).ends(0).out, "b1\t3\nc1\t4\n");
    place.run(&["del", "ships.db", "--from", "b", "--to", "c"]).ends(0);
    assert_eq!(place.run(&["dump", "ships.db"]).ends(0).out, "c1\t4\n");
    for wrong in [
        &["del", "ships.db"][..],
        &["del", "ships.db", "c1", "--all"],
        &["del", "ships.db", "--all", "--to", "x"],
    ] {
        place.run(wrong).ends(2);
    }
    place.run(&["put", "ships.db", "rotterdam", "51.9", "--keyspace", "harbours"]).ends(0);
    place.run(&["del", "ships.db", "--all"]).ends(0);
    assert_eq!(place.run(&["dump", "ships.db"]).ends(0).out, "");
    place.run(&["drop", "ships.db", "harbours"]).ends(0);
    place.run(&["drop", "ships.db", "harbours"]).ends(1).tells("there are: default");
    place
        .run(&["get", "ships.db", "rotterdam", "--keyspace", "harbours"])
        .ends(1)
        .tells("there are: default");
    assert!(place.run(&["check", "ships.db"]).ends(0).out.contains("sound"));
}

/// What the error of a record that cannot be merged says to do.
#[test]
fn records_that_cannot_be_merged_are_removed() {
    let place = Place::new();
    let db = sapwood::Database::open(place.path("ships.db")).unwrap();
    let adding = sapwood::KeyspaceOptions::new().merge(sapwood::merge::AddU64);
    let hits = db.keyspace_with("hits", adding).unwrap();
    for page in ["page", "other"] {
        hits.insert(page, "no number").unwrap();
        hits.merge(page, 1_u64.to_be_bytes()).unwrap();
    }
    hits.insert("third", 3_u64.to_be_bytes()).unwrap();
    drop(hits);
    db.close().unwrap();
    place.run(&["get", "ships.db", "page", "-k", "hits"]).ends(3).tells("or remove it");
    place.run(&["del", "ships.db", "page", "-k", "hits"]).ends(0);
    // Also beside others, of which one is not there.
    let missing = ["del", "ships.db", "third", "other", "page", "-k", "hits"];
    place.run(&missing).ends(1).tells("not found, and so not removed: page\n");
    assert_eq!(place.run(&["dump", "ships.db", "-k", "hits"]).ends(0).out, "");
}

#[test]
fn records_expire_when_they_are_put_so() {
    let place = Place::new();
    place.run(&["put", "cache.db", "page", "1", "--expires", "0.01"]).ends(0);
    place.run(&["put", "cache.db", "other", "2"]).ends(0);
    place.run(&["put", "cache.db", "third", "3", "--expires", "1000"]).ends(0);
    std::thread::sleep(std::time::Duration::from_millis(20));
    place.run(&["get", "cache.db", "page"]).ends(1);
    assert_eq!(place.run(&["dump", "cache.db"]).ends(0).out, "other\t2\nthird\t3\n");
    assert!(place.run(&["stats", "cache.db"]).ends(0).out.contains("may expire"));
    place.ships("beagle\t1820\n");
    place.run(&["put", "ships.db", "fram", "1892", "--expires", "7"]).ends(2).tells("cannot expire");
}

#[test]
fn what_is_not_there_is_1_and_named() {
    let place = Place::new();
    place.ships("beagle\t1820\n");
    let said = place.run(&["get", "ships.db", "fram", "beagle", "vega"]).ends(1).tells("fram vega");
    assert_eq!(said.out, "1820\n");
    let said = place.run(&["get", "ships.db", "fram", "beagle", "--json"]).ends(1);
    assert_eq!(said.out, "{\"key\":\"fram\",\"value\":null}\n{\"key\":\"beagle\",\"value\":\"1820\"}\n");
    place.run(&["del", "ships.db", "fram", "beagle"]).ends(1).tells("fram");
    place.run(&["get", "ships.db", "beagle"]).ends(1);
    place.run(&["get", "ships.db", "x", "--keyspace", "boats"]).ends(1).tells("there are: default");
    place.run(&["del", "ships.db", "x", "--keyspace", "boats"]).ends(1).tells("there are: default");
    place.run(&["dump", "ships.db", "-k", "boats"]).ends(1).tells("there are: default");
    place.run(&["scan", "ships.db", "-k", "boats"]).ends(1).tells("there are: default");
}

#[test]
fn wrong_usage_is_2() {
    let place = Place::new();
    place.ships("beagle\t1820\n");
    for arguments in [
        &["get", "ships.db"][..],
        &["sail", "ships.db"],
        &[],
        &["get", "ships.db", ""],
        &["get", "ships.db", "a\\q"],
        &["put", "ships.db", "", "1"],
        &["put", "ships.db", "a", "b\\x1"],
        &["put", "ships.db", "a", "b", "--keyspace", ""],
        &["del", "ships.db", ""],
        &["scan", "ships.db", "--prefix", "a", "--from", "b"],
        &["scan", "ships.db", "--limit", "many"],
        &["backup", "ships.db", "backups", "--rate", "0"],
        &["get", "ships.db", "a", "--memory", "1"],
        &["get", "ships.db", "a", "--memory", "much"],
        &["load", "ships.db", "x.tsv", "--batch", "0"],
        &["load", "ships.db", "x.tsv", "--format", "xml"],
        &["get", "ships.db", "a", "--hex", "--json"],
        &["get", "ships.db", "a", "--wait", "soon"],
        &["get", "ships.db", "a", "--wait", "-1"],
        &["changes", "ships.db", "--keep", "0", "--since", "0f9c2d5e8a7b46139c0d1e2f3a4b5c6d-1-2"],
        &["backups", "backups", "--remove", "1", "--json"],
    ] {
        place.run(arguments).ends(2);
    }
    let long = "k".repeat(sapwood::KEY_LEN_MAX + 1);
    place.run(&["put", "ships.db", &long, "1"]).ends(2).tells("65537 bytes");
    place.run(&["get", "ships.db", "a", "--memory", "1"]).tells("at least 4194304 bytes");
    place.run(&["get", "ships.db", "a\\q"]).tells("\\xHH at byte 1");
    assert_eq!(place.run(&["dump", "ships.db"]).ends(0).out, "beagle\t1820\n");
}

#[test]
fn every_command_explains_itself_with_an_example() {
    let place = Place::new();
    for command in [
        "load", "dump", "get", "put", "del", "drop", "scan", "stats", "check", "flush", "compact", "probe",
        "tour",
    ] {
        let said = place.run(&[command, "--help"]).ends(0);
        assert!(said.out.contains(&format!("  sapwood {command}")), "{command}: {}", said.out);
    }
    assert!(place.run(&["--help"]).ends(0).out.contains("A first session"));
}

#[test]
fn no_database_is_3_and_none_is_made_for_reading() {
    let place = Place::new();
    for arguments in [
        &["get", "none.db", "a"][..],
        &["del", "none.db", "a"],
        &["dump", "none.db"],
        &["scan", "none.db"],
        &["stats", "none.db"],
        &["check", "none.db"],
        &["flush", "none.db"],
        &["compact", "none.db"],
    ] {
        place.run(arguments).ends(3).tells("there is no database in none.db");
        assert!(!place.path("none.db").exists(), "{arguments:?} made a directory");
    }
    place.run(&["load", "none.db", "none.tsv"]).ends(3).tells("none.tsv");
    assert!(!place.path("none.db").exists());
}

#[test]
fn a_directory_of_something_else_is_refused_and_left_alone() {
    let place = Place::new();
    std::fs::create_dir(place.path("photos")).unwrap();
    place.file("photos/one.jpg", "not a database");
    place.file("a.txt", "not even a directory");
    for arguments in [
        &["put", "photos", "a", "b"][..],
        &["get", "photos", "a"],
        &["check", "photos"],
        &["del", "photos", "a"],
    ] {
        place.run(arguments).ends(3).tells("photos is not a Sapwood database").tells("one.jpg");
    }
    place.feed(&["load", "photos"], b"a\tb\n").ends(3).tells("photos is not a Sapwood database");
    let left: Vec<_> = std::fs::read_dir(place.path("photos")).unwrap().map(|entry| entry.unwrap()).collect();
    let names: Vec<_> = left.iter().map(|entry| entry.file_name()).filter(|name| name != "LOCK").collect();
    assert_eq!(names, ["one.jpg"]);
    assert_eq!(std::fs::read(place.path("photos/one.jpg")).unwrap(), b"not a database");
    place.run(&["get", "a.txt", "a"]).ends(3).tells("a.txt is a file");
    place.run(&["check", "a.txt"]).ends(3).tells("a.txt is a file");
    place.run(&["load", "a.txt", "photos"]).ends(3).tells("sapwood load DB FILE");
    place.run(&["put", "a.txt", "a", "b"]).ends(3).tells("a.txt");
}

#[test]
fn a_database_in_use_names_who_uses_it() {
    let place = Place::new();
    let mut loading = place.command(&["load", "ships.db"]).stdin(Stdio::piped()).spawn().unwrap();
    // Opened once there is something to load.
    std::io::Write::write_all(loading.stdin.as_mut().unwrap(), b"beagle\t1820\n").unwrap();
    until("the database is open", || is_open(&place.path("ships.db")));
    let holder = format!("process {}", loading.id());
    place.run(&["put", "ships.db", "a", "b"]).ends(3).tells("ships.db is in use by").tells(&holder);
    place.run(&["check", "ships.db"]).ends(3).tells(&holder);
    drop(loading.stdin.take());
    wait(loading).ends(0);
    place.run(&["put", "ships.db", "a", "b"]).ends(0);
}

#[test]
fn a_database_in_use_is_read_as_of_what_is_durable() {
    let place = Place::new();
    place.ships("beagle\t1820\n");
    let db = sapwood::Database::open(place.path("ships.db")).unwrap();
    let ships = db.keyspace(&db.keyspaces()[0]).unwrap();
    ships.insert("fram", "1892").unwrap();
    let mut batch = db.batch();
    batch.insert(&ships, "vasa", "1627");
    batch.durability(sapwood::Durability::Buffered).commit().unwrap();
    assert_eq!(place.run(&["get", "ships.db", "fram"]).ends(0).out, "1892\n");
    place.run(&["get", "ships.db", "vasa"]).ends(1);
    assert_eq!(place.run(&["scan", "ships.db", "--count"]).ends(0).out, "2\n");
    assert!(place.run(&["dump", "ships.db"]).ends(0).out.contains("fram"));
    for command in [&["stats", "ships.db"][..], &["map", "ships.db"], &["explain", "ships.db", "fram"]] {
        place.run(command).ends(0);
    }
    place.run(&["backup", "ships.db", "backups"]).ends(0);
    place.run(&["restore", "backups", "copy.db"]).ends(0);
    assert_eq!(place.run(&["scan", "copy.db", "--count"]).ends(0).out, "2\n");
    db.sync().unwrap();
    assert_eq!(place.run(&["get", "ships.db", "vasa"]).ends(0).out, "1627\n");
    let names = std::fs::read_dir(place.path("ships.db")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!names.into_iter().any(|name| name.to_string_lossy().starts_with("follower-")));
}

#[test]
fn who_waits_for_a_database_gets_it() {
    let place = Place::new();
    place.ships("beagle\t1820\n");
    let db = sapwood::Database::open(place.path("ships.db")).unwrap();
    let began = std::time::Instant::now();
    place.run(&["put", "ships.db", "a", "b", "--wait", "0.3"]).ends(3).tells("ships.db is in use by");
    assert!(began.elapsed() >= std::time::Duration::from_millis(300));
    let waiting: Vec<_> = (0..4)
        .map(|index| {
            let key = format!("key{index}");
            place.command(&["put", "ships.db", &key, "1", "--wait", "600"]).spawn().unwrap()
        })
        .collect();
    std::thread::sleep(std::time::Duration::from_millis(300));
    db.close().unwrap();
    for child in waiting {
        wait(child).ends(0);
    }
    assert_eq!(place.run(&["scan", "ships.db", "--count"]).ends(0).out, "5\n");
}

/// It ended with 134, in the middle of opening.
#[cfg(target_os = "linux")]
#[test]
fn a_budget_beyond_the_address_space_is_refused() {
    let place = Place::new();
    place.ships("beagle\t1820\n");
    for (limit, memory) in [("200000", "1000GiB"), ("400000", "8GiB"), ("4000000", "1000GiB")] {
        for command in
            ["put ships.db a b", "get ships.db beagle", "load ships.db /dev/null", "check ships.db"]
        {
            let program = crate::running::PROGRAM;
            let script = format!("ulimit -v {limit}; exec {program} {command} --memory {memory}");
            let output =
                std::process::Command::new("sh").args(["-c", &script]).current_dir(place.path("")).output();
            crate::running::Said::from(output.unwrap()).ends(2).tells("memory = ").tells("ulimit -v");
        }
    }
    let script = format!("ulimit -v 1000000; exec {} get ships.db beagle", crate::running::PROGRAM);
    let output = std::process::Command::new("sh").args(["-c", &script]).current_dir(place.path("")).output();
    assert_eq!(crate::running::Said::from(output.unwrap()).ends(0).out, "1820\n");
}

#[test]
fn readers_do_not_keep_each_other_away() {
    let place = Place::new();
    let text: String = (0..40_000).map(|index| format!("{index:08}\tvalue {index} of many\n")).collect();
    place.ships(&text);
    // Stands still at a full pipe, with the database open.
    let mut reading = place.command(&["dump", "ships.db"]).spawn().unwrap();
    let mut first = [0; 8];
    std::io::Read::read_exact(reading.stdout.as_mut().unwrap(), &mut first).unwrap();
    assert_eq!(&first, b"00000000");
    assert_eq!(place.run(&["scan", "ships.db", "--count"]).ends(0).out, "40000\n");
    place.run(&["put", "ships.db", "a", "b"]).ends(3).tells("ships.db is in use by");
    drop(reading.stdout.take());
    wait(reading).ends(0);
    place.run(&["put", "ships.db", "a", "b"]).ends(0);
}

/// Needs a user who may not write: the one who runs the tests, or `nobody` if that is root.
#[cfg(target_os = "linux")]
#[test]
fn a_directory_that_cannot_be_written_can_be_read() {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    let place = Place::new();
    place.ships("beagle\t1820\n");
    let mode = |name: &str, mode| set_permissions(place.path(name), Permissions::from_mode(mode)).unwrap();
    mode("", 0o755);
    let files: Vec<_> = std::fs::read_dir(place.path("ships.db")).unwrap().map(|e| e.unwrap()).collect();
    for file in &files {
        mode(&format!("ships.db/{}", file.file_name().to_str().unwrap()), 0o444);
    }
    mode("ships.db", 0o555);
    // Where `nobody` can run it.
    let program = place.path("sapwood");
    // By a process of its own: while this one has a program open for writing, no test can start it.
    let copied = std::process::Command::new("cp").arg(crate::running::PROGRAM).arg(&program).status();
    assert!(copied.unwrap().success());
    mode("sapwood", 0o755);
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(&program);
        command.args(arguments).current_dir(place.path(""));
        if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
            command.uid(65534).gid(65534);
        }
        crate::running::Said::from(command.output().expect("start the program"))
    };
    assert_eq!(run(&["get", "ships.db", "beagle"]).ends(0).out, "1820\n");
    assert!(run(&["check", "ships.db"]).ends(0).out.contains("sound"));
    place.file("out", "what was there");
    mode("out", 0o666);
    run(&["get", "ships.db", "beagle", "--to", "out"]).ends(0);
    assert_eq!(std::fs::read(place.path("out")).unwrap(), b"1820");
    run(&["put", "ships.db", "a", "b"]).ends(3).tells("ermission denied");
    run(&["put", "new.db", "a", "b"]).ends(3).tells("ermission denied").tells("new.db");
    mode("ships.db", 0o755);
}

/// It did not wait.
#[test]
fn a_repair_waits_for_the_database() {
    let place = Place::new();
    place.ships("beagle\t1820\n");
    let db = sapwood::Database::open(place.path("ships.db")).unwrap();
    let began = std::time::Instant::now();
    place.run(&["repair", "ships.db", "new.db", "--wait", "0.3"]).ends(3).tells("ships.db is in use by");
    assert!(began.elapsed() >= std::time::Duration::from_millis(300));
    assert!(!place.path("new.db").exists());
    let waiting = place.command(&["repair", "ships.db", "new.db", "--wait", "600"]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    db.close().unwrap();
    wait(waiting).ends(0);
    assert_eq!(place.run(&["scan", "new.db", "--count"]).ends(0).out, "1\n");
}

#[test]
fn what_fails_before_it_begins_makes_nothing() {
    let place = Place::new();
    place.ships("beagle\t1820\n");
    place.run(&["backup", "ships.db", "backups"]).ends(0);
    std::fs::create_dir(place.path("empty")).unwrap();
    for key in ["one.key", "two.key"] {
        place.run(&["key", "new", key]).ends(0);
    }
    place.run(&["put", "secret.db", "k", "v", "--key-file", "one.key"]).ends(0);
    place.run(&["backup", "secret.db", "secret", "--key-file", "one.key"]).ends(0);
    for (stream, more) in [("ships", &["ships.db"][..]), ("secrets", &["secret.db", "--key-file", "one.key"])]
    {
        let backup = place.command(&[&["backup", "--stream"], more].concat()).output().unwrap();
        place.file(stream, backup.stdout);
    }
    let (key, name) = ("k".repeat(sapwood::KEY_LEN_MAX + 1), "n".repeat(256));
    for (code, arguments) in [
        (2, &["put", "new.db", "", "v"][..]),
        (2, &["put", "new.db", &key, "v"]),
        (2, &["put", "new.db", "k", "v", "-k", ""]),
        (2, &["put", "new.db", "k", "v", "-k", &name]),
        (2, &["put", "new.db", "", "--from", "/dev/null"]),
        (2, &["put", "new.db", "k", "--from", "/dev/null", "-k", "two\nlines"]),
        (3, &["put", "new.db", "k", "--from", "empty"]),
        // It is there, and nobody can read its beginning.
        (3, &["put", "new.db", "k", "--from", "/proc/self/mem"]),
        (2, &["load", "new.db", "/dev/null", "-k", ""]),
        (2, &["load", "new.db", "/dev/null", "--memory", "1"]),
        (3, &["load", "new.db", "empty"]),
        (3, &["repair", "none.db", "new.db"]),
        (3, &["repair", "empty", "new.db"]),
        (1, &["restore", "backups", "new.db", "--number", "7"]),
        (1, &["restore", "backups", "new.db", "--to", "2h ago"]),
        (1, &["restore", "empty", "new.db"]),
        (1, &["restore", "/dev/null", "new.db"]),
        (3, &["restore", "backups", "new.db", "--key-file", "one.key"]),
        (3, &["restore", "ships", "new.db", "--key-file", "one.key"]),
        (3, &["restore", "secret", "new.db"]),
        (3, &["restore", "secret", "new.db", "--key-file", "two.key"]),
        (3, &["restore", "secrets", "new.db"]),
    ] {
        place.run(arguments).ends(code);
        assert!(!place.path("new.db").exists(), "{arguments:?}");
    }
    // In a database that is there, no keyspace.
    place.run(&["put", "ships.db", "", "v", "-k", "new"]).ends(2);
    place.run(&["scan", "ships.db", "-k", "new"]).ends(1);
}
