//! A disk that fills up in the middle of a load: the count that is told is the count that is there.

use crate::running::{PROGRAM, Place, Said, noise};
use std::process::Command;

/// Runs a script where `full/` is a file system of 16 MiB, in a mount namespace that ends with it.
fn on_a_small_disk(place: &Place, script: &str) -> Option<Said> {
    std::fs::create_dir(place.path("full")).unwrap();
    let mount = "mount -t tmpfs -o size=16m tmpfs full";
    let in_namespace = |script: String| {
        Command::new("unshare").args(["-rm", "sh", "-c", &script]).current_dir(place.path("")).output()
    };
    if !in_namespace(mount.to_owned()).is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: cannot mount a small file system here (needs user namespaces or root)");
        return None;
    }
    Some(Said::from(in_namespace(format!("{mount} && {script}")).unwrap()))
}

#[test]
fn what_fitted_is_in_and_counted() {
    let place = Place::new();
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let text: String =
        (0..60_000u64).map(|index| format!("{index:08}\t{}\n", hex(noise(index + 1, 250)))).collect();
    place.file("ships.tsv", text);
    let script = format!(
        "{{ {PROGRAM} load full/x.db ships.tsv --memory 8M; echo $?; {PROGRAM} check full/x.db >&2; \
         {PROGRAM} scan full/x.db --count; }}"
    );
    let Some(said) = on_a_small_disk(&place, &script) else { return };
    assert!(said.err.contains("no space left") || said.err.contains("No space left"), "{said:?}");
    let lines: Vec<_> = said.out.lines().collect();
    assert_eq!(lines.len(), 2, "{said:?}");
    assert_eq!(lines[0], "3", "{said:?}");
    let words: Vec<_> = said.err.split_whitespace().collect();
    let told =
        words.windows(2).find(|pair| pair[1] == "records" && pair[0].parse::<u64>().is_ok()).unwrap()[0];
    assert_eq!(lines[1], told, "{said:?}");
    assert!(told.parse::<u64>().unwrap() > 1000, "{said:?}");
}

/// Nothing could be removed from a disk that was full to the last block.
#[test]
fn a_full_disk_can_be_emptied() {
    let place = Place::new();
    let value = "v".repeat(300);
    let text: String = (0..60_000u64).map(|index| format!("{index:08}\t{value}\n")).collect();
    place.file("ships.tsv", text);
    let script = format!(
        "{PROGRAM} load full/x.db ships.tsv --compression none --memory 8M; {PROGRAM} put full/x.db more {value}; \
         cat /dev/zero > full/another; \
         {PROGRAM} scan full/x.db | cut -f1 >keys; xargs -n 1000 {PROGRAM} del full/x.db <keys || exit 11; \
         {PROGRAM} compact full/x.db || exit 12; rm full/another; \
         {PROGRAM} put full/x.db again 1 || exit 13; {PROGRAM} scan full/x.db --count && {PROGRAM} check full/x.db >&2"
    );
    let Some(said) = on_a_small_disk(&place, &script) else { return };
    assert_eq!((said.code, said.out.lines().last()), (Some(0), Some("1")), "{said:?}");
    assert!(said.err.contains("removing records and compacting has space set aside"), "{said:?}");
}

/// It said that the lock of LOCK failed.
#[test]
fn a_file_system_that_is_read_only_is_named() {
    let place = Place::new();
    let script = format!(
        "{PROGRAM} put full/x.db a b && mount -o remount,ro full && {{ {PROGRAM} get full/x.db a; \
         for command in 'put full/x.db a b' 'put full/new.db a b' 'del full/x.db a' 'flush full/x.db'; do \
         {PROGRAM} $command && exit 1; done; exit 0; }}"
    );
    let Some(said) = on_a_small_disk(&place, &script) else { return };
    assert_eq!((said.code, said.out.as_str()), (Some(0), "b\n"), "{said:?}");
    assert_eq!(said.err.matches("since the file system is read-only").count(), 4, "{said:?}");
    assert_eq!(said.err.matches("mount it for writing").count(), 4, "{said:?}");
}

/// The records of the last batch are not there, and the command that was suggested began behind them.
#[test]
fn who_interrupts_a_load_that_cannot_be_committed_is_told_to_repeat_it() {
    let place = Place::new();
    let lines = |count: u64| -> String {
        (0..count).map(|index| format!("{index:08}\t{}\n", "v".repeat(300))).collect()
    };
    place.file("ships.tsv", lines(60_000));
    // More bad lines than pipe and program take ahead: once all are written, it has the records before them.
    place.file("more.tsv", lines(1000) + &"bad\n".repeat(1 << 20));
    let script = format!(
        "{{ {PROGRAM} load full/x.db ships.tsv --compression none --memory 8M; cat /dev/zero > full/another; }} 2>/dev/null; \
         mkfifo pipe; exec 3<>pipe; \
         {PROGRAM} load full/x.db - --batch 100000 --memory 8M --skip-bad <pipe 3<&- & \
         timeout 60 cat more.tsv >&3; kill -TERM $!; wait $!"
    );
    let Some(said) = on_a_small_disk(&place, &script) else { return };
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.err.contains("interrupted: about 0 records are in the database"), "{said:?}");
    assert!(said.err.contains("run the same command again") && !said.err.contains("tail -n"), "{said:?}");
}

/// It told of the full disk alone.
#[test]
fn what_a_large_value_that_does_not_fit_leaves_is_told() {
    let place = Place::new();
    place.file("film", noise(7, 24 << 20));
    let script = format!("{PROGRAM} put full/x.db fram --from film -k films --memory 8M");
    let Some(said) = on_a_small_disk(&place, &script) else { return };
    let said = said.ends(3).tells("o space left");
    assert!(said.err.trim_end().ends_with("; full/x.db has no keyspaces"), "{said:?}");
}

/// It advised to remove records from the database whose backup found no space, and of one that was not there yet.
#[test]
fn a_full_disk_without_a_database_asks_for_no_records() {
    let place = Place::new();
    let text: String = (0..60_000u64).map(|index| format!("{index:08}\t{}\n", "v".repeat(300))).collect();
    place.feed(&["load", "x.db", "--compression", "none"], text.as_bytes()).ends(0);
    place.run(&["backup", "x.db", "backups"]).ends(0);
    let script = format!(
        "{PROGRAM} backup x.db full/backups; {PROGRAM} restore backups full/y.db; rm -r full/*; cat /dev/zero >full/another; \
         {PROGRAM} put full/z.db a b; mkdir tiny; mount -t tmpfs -o nr_inodes=1 tmpfs tiny; \
         {PROGRAM} backup x.db tiny/backups; {PROGRAM} restore backups tiny/y.db; {PROGRAM} put tiny/z.db a b"
    );
    let Some(said) = on_a_small_disk(&place, &script) else { return };
    let said = said.ends(3);
    assert_eq!(said.err.matches("sapwood: ").count(), 6, "{said:?}");
    assert_eq!(said.err.matches("free some space and try again").count(), 6, "{said:?}");
    assert_eq!(said.err.matches("there is no database yet").count(), 4, "{said:?}");
    assert!(!said.err.contains("removing records"), "{said:?}");
}
