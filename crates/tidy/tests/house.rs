//! The house rules hold in this repository.

use std::path::Path;
use tidy::{Tree, report};

fn repository() -> Tree {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tree = Tree::load(&root.canonicalize().expect("the repository is there")).expect("it can be read");
    assert!(tree.file("crates/tidy/src/lib.rs").is_some(), "this is not the repository");
    tree
}

#[test]
fn crates_depend_only_on_lower_ones() {
    report(&tidy::crate_arrows::check(&repository()));
}

#[test]
fn folders_use_only_lower_ones() {
    report(&tidy::folder_arrows::check(&repository()));
}

#[test]
fn no_file_is_dead() {
    report(&tidy::dead_files::check(&repository()));
}

#[test]
fn methods_lie_in_the_folder_of_their_type() {
    report(&tidy::impls::check(&repository()));
}

#[test]
fn the_store_starts_no_thread_outside_its_pool() {
    report(&tidy::threads::check(&repository()));
}

#[test]
fn locks_of_the_store_have_a_rank() {
    report(&tidy::locks::check(&repository()));
}

#[test]
fn constants_of_the_store_say_their_unit_and_reason() {
    report(&tidy::constants::check(&repository()));
}

#[test]
fn public_items_have_examples() {
    report(&tidy::examples::check(&repository()));
}

#[test]
fn nothing_is_left_over() {
    report(&tidy::leftovers::check(&repository()));
}

#[test]
fn no_file_is_too_long() {
    report(&tidy::length::check(&repository()));
}

#[test]
fn unsafe_stays_in_the_io_layer() {
    report(&tidy::unsafe_code::check(&repository()));
}

#[test]
fn documents_point_at_what_is_there() {
    report(&tidy::links::check(&repository()));
}

#[test]
fn documents_name_tests_that_are_there() {
    report(&tidy::named_tests::check(&repository()));
}

#[test]
fn the_document_of_formats_says_what_the_code_says() {
    report(&tidy::formats::check(&repository()));
}

#[test]
fn decision_records_have_one_form() {
    report(&tidy::decisions::check(&repository()));
}

#[test]
fn no_machine_is_mentioned() {
    report(&tidy::places::check(&repository()));
}

#[test]
fn every_source_file_says_what_it_is_for() {
    report(&tidy::opening::check(&repository()));
}
