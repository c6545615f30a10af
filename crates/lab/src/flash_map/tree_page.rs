//! The flash under a tree as a page that plays it, step by step, and needs no other file.
//!
//! Invariant: it shows at every frame what [`super::tree_picture()`] shows of the last one: the same places, kinds and colours.

use super::age;
use super::holds::Holds;
use super::of_tree::TreePlayed;
use super::tree_picture::{BLOCK, DOT, SIDE, die};
use maud::{DOCTYPE, PreEscaped, html};
use serde::Serialize;

const SCRIPT: &str = include_str!("tree_play.js");
const STYLE: &str = include_str!("play.css");

/// What the script draws.
#[derive(Serialize)]
struct Data {
    rows: u32,
    columns: u32,
    pages: u32,
    side: u32,
    dot: u32,
    block: u32,
    dies: Vec<String>,
    kinds: Vec<Kind>,
    ages: Vec<(u8, u8, u8)>,
    age_ends: Vec<u64>,
    frames: Vec<Moment>,
}

#[derive(Serialize)]
struct Kind {
    name: &'static str,
    colour: (u8, u8, u8),
    kept: bool,
}

#[derive(Serialize)]
struct Moment {
    seconds: f64,
    operations: u64,
    programs: u64,
    erases: u64,
    /// Twice the number of a page, one more if it was written, and its kind, in turn.
    changed: Vec<u32>,
}

/// The page.
pub(crate) fn tree_page(played: &TreePlayed) -> String {
    let tree = played.play.tree;
    let frames = played.frames.iter().map(|frame| Moment {
        seconds: frame.seconds,
        operations: frame.operations,
        programs: frame.programs,
        erases: frame.erases,
        changed: (frame.changes.iter())
            .flat_map(|change| [2 * change.page + u32::from(change.written), change.holds.number() as u32])
            .collect(),
    });
    let geometry = played.geometry;
    let kinds = Holds::ALL.map(|holds| Kind {
        name: holds.name(tree).0,
        colour: holds.colour(),
        kept: holds.is_kept(),
    });
    let data = Data {
        rows: geometry.units(),
        columns: geometry.blocks_per_plane,
        pages: geometry.pages_per_block,
        side: SIDE,
        dot: DOT,
        block: BLOCK,
        dies: (0..geometry.units()).map(|row| die(played, row)).collect(),
        kinds: kinds.into(),
        ages: age::COLOURS.into(),
        age_ends: age::ends(played.play.operations),
        frames: frames.collect(),
    };
    // Numbers and our own names only, so that nothing in it can end the script.
    let data = serde_json::to_string(&data).expect("finite numbers");
    // What never occurs needs no explanation.
    let mut occurs = [false; Holds::ALL.len()];
    for change in played.frames.iter().flat_map(|frame| &frame.changes) {
        occurs[change.holds.number()] = true;
    }
    let swatch = |(red, green, blue): (u8, u8, u8)| format!("background: rgb({red},{green},{blue})");
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (played.title()) }
                style { (PreEscaped(STYLE)) }
            }
            body.wide {
                h1 { (played.title()) }
                p {
                    "Flash from above: a row for each die, a large square for each block, a small square for each page of "
                    (geometry.page_bytes / 1024) " KiB. A page of flash cannot be overwritten: a new version goes to an erased page, the "
                    "old one is dead, and only a whole block can be erased. Watch where the new versions go, and what must be "
                    "moved before a block is erased."
                }
                div.controls {
                    button #toggle { "Pause" }
                    button #back title="one step back (left arrow)" { "Step back" }
                    button #on title="one step on (right arrow)" { "Step" }
                    input #frame type="range" min="0" max=(played.frames.len().max(1) - 1) value="0" aria-label="step";
                    label { "speed " select #speed {
                        option value="4" { "slow" }
                        option value="12" selected { "normal" }
                        option value="40" { "fast" }
                    } }
                }
                div.controls {
                    span { "Colour by" }
                    label { input type="radio" name="by" value="level" checked; " level: what a page holds" }
                    label { input type="radio" name="by" value="age"; " age: how many updates ago it was written there, or moved" }
                }
                p #told {}
                figure {
                    canvas #pages {}
                    p #page { "Point at a page." }
                }
                table #level {
                    thead { tr { th {} th { "pages" } th { "hold" } th { "that is" } } }
                    tbody {
                        @for holds in Holds::in_legends() {
                            @if occurs[holds.number()] {
                                tr {
                                    td { span.key style=(swatch(holds.colour())) {} }
                                    td.count data-kind=(holds.number()) {}
                                    td { (holds.name(tree).0) }
                                    td { (holds.name(tree).1) }
                                }
                            }
                        }
                    }
                }
                table #age {
                    thead { tr { th {} th { "pages" } th { "were written, or moved," } } }
                    tbody {
                        @for (number, name) in age::names(played.play.operations).iter().enumerate() {
                            tr {
                                td { span.key style=(swatch(age::COLOURS[number])) {} }
                                td.count data-age=(number) {}
                                td { (name) }
                            }
                        }
                        @for holds in [Holds::Dead, Holds::Erased] {
                            tr {
                                td { span.key style=(swatch(holds.colour())) {} }
                                td.count data-kind=(holds.number()) {}
                                td { (holds.name(tree).0) ": " (holds.name(tree).1) }
                            }
                        }
                    }
                }
                @if let Some(counted) = played.counted() { p { (counted) } }
                script { (PreEscaped("const data = ")) (PreEscaped(data)) (PreEscaped(";\n")) (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

#[cfg(test)]
mod tests {
    use super::super::of_tree::{TreePlay, play};
    use super::*;
    use crate::every_system::System;

    /// Plays the frames as the script does.
    fn replay(data: &serde_json::Value) -> Vec<u64> {
        let mut kinds = vec![0; data["pages"].as_u64().unwrap() as usize * 256];
        for frame in data["frames"].as_array().unwrap() {
            for pair in frame["changed"].as_array().unwrap().chunks(2) {
                kinds[pair[0].as_u64().unwrap() as usize / 2] = pair[1].as_u64().unwrap();
            }
        }
        kinds
    }

    #[test]
    fn the_page_has_every_frame_and_needs_nothing() {
        let wish = TreePlay { tree: System::Wandering, records: 5_000, operations: 100, frames: 4 };
        let played = play(wish).unwrap();
        let page = tree_page(&played);
        let data = page.split("const data = ").nth(1).unwrap().split(";\n").next().unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        let steps: Vec<_> = data["frames"]
            .as_array()
            .unwrap()
            .iter()
            .map(|frame| frame["operations"].as_u64().unwrap())
            .collect();
        assert_eq!(steps, [0, 25, 50, 75, 100]);
        let kinds = replay(&data);
        let end: Vec<_> = played.at_the_end().iter().map(|page| page.0.number() as u64).collect();
        assert_eq!(kinds, end);
        for foreign in ["src=", "http", "@import"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        for text in ["value=\"age\"", "<td>root</td>", "<td>dead</td>", "The tree itself counts"] {
            assert!(page.contains(text), "{text}");
        }
        assert!(!page.contains("<td>stale</td>"), "raw flash has no files");
    }
}
