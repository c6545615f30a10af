//! What shows the inside of a database, and of the program itself: explain, map, metrics, completions, manual pages.

use crate::running::Place;
use std::process::{Command, Stdio};

fn ships(count: u32) -> Place {
    let place = Place::new();
    let text: String = (0..count).map(|index| format!("{index:08}\tship {index}\n")).collect();
    place.ships(&text);
    place.run(&["flush", "ships.db"]).ends(0);
    place
}

#[test]
fn explain_tells_where_a_key_is_and_what_was_read_for_it() {
    let place = ships(20_000);
    let said = place.run(&["explain", "ships.db", "00010000"]).ends(0).out;
    let lines: Vec<_> = said.lines().collect();
    assert!(lines[0].starts_with(" 1  active queue of 0 changes, in memory: nothing"), "{said}");
    assert!(said.contains("  block ") && said.contains("read from the device, "), "{said}");
    assert!(lines[lines.len() - 2].ends_with(": a value of 10 bytes"), "{said}");
    assert!(
        lines[lines.len() - 1].starts_with("found: a value of 10 bytes; read from the device: "),
        "{said}"
    );
    let json = place.run(&["explain", "ships.db", "00010000", "--json"]).ends(0).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["value_bytes"], 10);
    assert!(json["requests"].as_u64().unwrap() >= 2, "{json}");
    assert_eq!(json["steps"].as_array().unwrap().len(), lines.len() - 1);

    let said = place.run(&["explain", "ships.db", "none"]).ends(1).tells("not found: none").out;
    assert!(said.contains("\nnot found; read from the device"), "{said}");
    place.run(&["explain", "ships.db", "k", "--keyspace", "harbours"]).ends(1).tells("there are: default");
    place.run(&["explain", "ships.db", "\\x"]).ends(2);
    place.run(&["put", "ships.db", "vega", "1872"]).ends(0);
    let said = place.run(&["explain", "ships.db", "vega"]).ends(0).out;
    assert!(
        said.starts_with(" 1  active queue of 1 changes, in memory: a value of 4 bytes\nfound"),
        "{said}"
    );
}

#[test]
fn top_shows_a_database_whether_or_not_a_process_writes_it() {
    let place = ships(3000);
    let said = place.run(&["top", "ships.db", "--once", "--interval", "0.05"]).ends(0).out;
    assert!(said.contains("no process writes it") && said.contains("3,000"), "{said}");
    let json = place.run(&["top", "ships.db", "--once", "--json", "--interval", "0.05"]).ends(0).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["stats"]["keyspaces"][0]["records"], 3000);
    assert!(json["writer"].is_null(), "{json}");
    place.run(&["top", "none.db"]).ends(3).tells("no database");
    place.run(&["top", "ships.db", "--interval", "0"]).ends(2).tells("0.01");
    // Beside a process that has it open for writing, which is not kept from it.
    let db = sapwood::Database::open(place.path("ships.db")).unwrap();
    db.keyspace("default").unwrap().insert("vega", "1872").unwrap();
    let said = place.run(&["top", "ships.db", "--once", "--interval", "0.05"]).ends(0).out;
    let id = std::process::id();
    assert!(
        said.contains(&format!("written by process {id}, ")) && said.contains("1 changes for a flush"),
        "{said}"
    );
    db.close().unwrap();
}

#[test]
fn changes_are_lines_of_json_from_a_position_on() {
    let place = ships(3);
    place.run(&["changes", "ships.db"]).ends(2).tells("keeps no changes");
    place.run(&["changes", "ships.db", "--keep", "1"]).ends(2).tells("1 MiB");
    place.run(&["changes", "ships.db", "--keep", "1MiB"]).ends(0);
    place.run(&["changes", "ships.db", "--keep", "0"]).ends(0).tells("no changes are kept");
    place.run(&["changes", "ships.db"]).ends(2).tells("keeps no changes");
    assert_eq!(place.run(&["changes", "ships.db", "--keep", "1MiB"]).ends(0).out, "");
    place.run(&["put", "ships.db", "vega", "1872"]).ends(0);
    place.run(&["put", "ships.db", "fram", "1892", "--keyspace", "polar"]).ends(0);
    place.run(&["del", "ships.db", "vega"]).ends(0);
    let said = place.run(&["changes", "ships.db"]).ends(0).out;
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4, "{said}");
    let put = &lines[0]["operations"][0];
    assert_eq!(
        [&put["operation"], &put["keyspace"], &put["key"], &put["value"]],
        ["insert", "default", "vega", "1872"]
    );
    assert_eq!(lines[1]["created"], "polar");
    assert_eq!(lines[2]["operations"][0]["keyspace"], "polar");
    assert_eq!(lines[3]["operations"][0]["operation"], "remove");
    let after = lines[2]["position"].as_str().unwrap();
    let rest = place.run(&["changes", "ships.db", "--since", after]).ends(0).tells("ships.db: ").out;
    assert_eq!(rest.trim_end(), said.lines().last().unwrap());
    place.run(&["changes", "ships.db", "--since", "yesterday"]).ends(2).tells("is not a position");
    let foreign = format!("{}-1-0", "0".repeat(32));
    place.run(&["changes", "ships.db", "--since", &foreign]).ends(2).tells("it belongs to database");
    let keep = ["changes", "ships.db", "--keep", "2M", "--since", &foreign];
    place.run(&keep).ends(2).tells("it belongs to database");
}

#[test]
fn map_lists_and_draws_the_segments() {
    let place = ships(20_000);
    let table = place.run(&["map", "ships.db"]).ends(0).out;
    let json = place.run(&["map", "ships.db", "--json"]).ends(0).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let segments = json.as_array().unwrap();
    assert_eq!(table.lines().count(), segments.len() + 2, "{table}");
    assert!(table.lines().last().unwrap().contains(" bytes live ("), "{table}");
    let stats = place.run(&["stats", "ships.db", "--json"]).ends(0).out;
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    let live: u64 = segments.iter().map(|segment| segment["live"].as_u64().unwrap()).sum();
    assert_eq!(stats["space"]["live"], live);
    place.run(&["map", "ships.db", "--svg", "map.svg"]).ends(0).tells("drawn into map.svg");
    let svg = std::fs::read_to_string(place.path("map.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.matches("<title>segment ").count() == segments.len(), "{svg}");
    place.run(&["map", "ships.db", "--svg", "none/map.svg"]).ends(3).tells("none/map.svg");
}

#[test]
fn stats_come_as_metrics() {
    let place = ships(1000);
    let said = place.run(&["stats", "ships.db", "--prometheus"]).ends(0).out;
    let text = "# TYPE sapwood_keyspace_records gauge\nsapwood_keyspace_records{keyspace=\"default\"} 1000\n";
    assert!(said.contains(text), "{said}");
    place.run(&["stats", "ships.db", "--prometheus", "--json"]).ends(2);
}

#[test]
fn shells_take_their_completions() {
    let place = Place::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = place.run(&["completions", shell]).ends(0).out;
        assert!(script.contains("explain") && script.contains("prometheus"), "{shell}: {script}");
    }
    place.run(&["completions", "cmd"]).ends(2);
    // What bash makes of it: the commands that begin so.
    let script = place.run(&["completions", "bash"]).ends(0).out;
    let ask = "COMP_WORDS=(sapwood ex); COMP_CWORD=1; _sapwood sapwood ex sapwood; echo \"${COMPREPLY[@]}\"";
    let bash = Command::new("bash").args(["-c", &format!("{script}\n{ask}")]).stderr(Stdio::null()).output();
    match bash {
        Ok(said) => assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "explain"),
        Err(error) => println!("skipped: there is no bash here: {error}"),
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let place = Place::new();
    let page = place.run(&["man"]).ends(0).out;
    assert!(page.contains(".TH sapwood 1"), "{page}");
    place.run(&["man", "pages"]).ends(0).tells("sapwood.1");
    let help = place.run(&["--help"]).ends(0).out;
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let is_command = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
    let mut count = 0;
    for line in commands.lines().filter(is_command) {
        let name = line.split_whitespace().next().unwrap();
        if name != "help" {
            let page =
                std::fs::read_to_string(place.path("pages").join(format!("sapwood-{name}.1"))).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{page}");
            count += 1;
        }
    }
    assert!(count >= 17, "{help}");
}

/// They went into a file of this name.
#[test]
fn pictures_go_to_standard_output_too() {
    let place = ships(3000);
    let said = place.run(&["map", "ships.db", "--svg", "-"]).ends(0);
    assert!(
        said.out.starts_with("<svg") && said.out.ends_with("</svg>\n") && said.err.is_empty(),
        "{said:?}"
    );
    place.run(&["probe", ".", "--plot", "-", "--json"]).ends(2).tells("one of both");
    assert!(!place.path("-").exists());
}
