//! The flash under a tree as one picture of its end, and as a page that plays it and needs no other file.
//!
//! Invariant: a page of flash is a square in its block, blocks stand as in the other map: a row for each die, a column for
//! each block of it; colour is what it holds, and the older it is, the paler.

use super::of_tree::{Holds, TreePlayed};
use maud::{DOCTYPE, PreEscaped, html};
use serde::Serialize;
use std::fmt::Write;

const SCRIPT: &str = include_str!("tree_play.js");
const STYLE: &str = include_str!("play.css");
/// Pages side by side in a block, pixels of a page and of a block with the gap behind it.
const SIDE: u32 = 8;
const DOT: u32 = 4;
const BLOCK: u32 = SIDE * DOT + 4;
const TOP: u32 = 64;

/// How much of its colour a page keeps that is so old, as a share of the play.
fn strength(age: f64) -> f64 {
    1.0 - 0.75 * age.clamp(0.0, 1.0)
}

/// What the script draws.
#[derive(Serialize)]
struct Data {
    rows: u32,
    columns: u32,
    pages: u32,
    side: u32,
    dot: u32,
    block: u32,
    names: Vec<&'static str>,
    colours: Vec<(u8, u8, u8)>,
    frames: Vec<Moment>,
}

#[derive(Serialize)]
struct Moment {
    seconds: f64,
    operations: u64,
    programs: u64,
    erases: u64,
    /// Page and kind in turn.
    changed: Vec<u32>,
}

/// Where a page is drawn.
fn place(played: &TreePlayed, page: u32) -> (u32, u32) {
    let pages = played.geometry.pages_per_block;
    let (block, index, units) = (page / pages, page % pages, played.geometry.units());
    (block / units * BLOCK + index % SIDE * DOT, block % units * BLOCK + index / SIDE * DOT)
}

/// The end as SVG.
pub(crate) fn tree_picture(played: &TreePlayed) -> String {
    let geometry = played.geometry;
    let (width, height) = (geometry.blocks_per_plane * BLOCK + 20, geometry.units() * BLOCK + TOP + 10);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\">\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\
         <text x=\"10\" y=\"22\" font-size=\"17\" fill=\"#282828\">{}</text>",
        played.title()
    );
    for (index, holds) in Holds::ALL.into_iter().enumerate() {
        let ((red, green, blue), x) = (holds.colour(), 10 + 170 * index);
        let _ = write!(
            svg,
            "<rect x=\"{x}\" y=\"36\" width=\"12\" height=\"12\" fill=\"rgb({red},{green},{blue})\"/>\
             <text x=\"{}\" y=\"47\" font-size=\"12\" fill=\"#282828\">{}</text>",
            x + 18,
            holds.name()
        );
    }
    let last = played.frames.len().max(2) - 1;
    for (page, (holds, born)) in (0..).zip(played.at_the_end()) {
        let ((x, y), (red, green, blue)) = (place(played, page), holds.colour());
        let age = if holds == Holds::Nothing { 0.0 } else { (last - born) as f64 / last as f64 };
        let _ = write!(
            svg,
            "<rect x=\"{}\" y=\"{}\" width=\"{DOT}\" height=\"{DOT}\" fill=\"rgb({red},{green},{blue})\" fill-opacity=\"{:.2}\"/>",
            x + 10,
            y + TOP,
            strength(age)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// The page.
pub(crate) fn tree_page(played: &TreePlayed) -> String {
    let number =
        |holds: Holds| Holds::ALL.iter().position(|other| *other == holds).unwrap_or_default() as u32;
    let frames = played.frames.iter().map(|frame| Moment {
        seconds: frame.seconds,
        operations: frame.operations,
        programs: frame.programs,
        erases: frame.erases,
        changed: frame.changed.iter().flat_map(|(page, holds)| [*page, number(*holds)]).collect(),
    });
    let geometry = played.geometry;
    let data = Data {
        rows: geometry.units(),
        columns: geometry.blocks_per_plane,
        pages: geometry.pages_per_block,
        side: SIDE,
        dot: DOT,
        block: BLOCK,
        names: Holds::ALL.map(Holds::name).to_vec(),
        colours: Holds::ALL.map(Holds::colour).to_vec(),
        frames: frames.collect(),
    };
    // Numbers and our own names only, so that nothing in it can end the script.
    let data = serde_json::to_string(&data).expect("finite numbers");
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (played.title()) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (played.title()) }
                p {
                    "Flash from above: a row for each die, a large square for each block, a small one for each page of it. "
                    "Colour says what a page holds; what was just written is strong, what has lain there is pale. A page "
                    "cannot be overwritten: watch where the tree, or the drive under it, puts the next version, and which "
                    "blocks are erased for it."
                }
                div.controls {
                    button #toggle { "Pause" }
                    input #frame type="range" min="0" max=(played.frames.len().max(1) - 1) value="0" aria-label="frame";
                    label { "speed " select #speed {
                        option value="4" { "slow" }
                        option value="12" selected { "normal" }
                        option value="40" { "fast" }
                    } }
                }
                p #told {}
                figure {
                    figcaption {
                        @for holds in Holds::ALL {
                            @let (red, green, blue) = holds.colour();
                            span.key style=(format!("background: rgb({red},{green},{blue})")) {} " " (holds.name()) " "
                        }
                    }
                    canvas #pages {}
                }
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

    #[test]
    fn the_picture_and_the_page_hold_every_page_and_need_nothing() {
        let wish = TreePlay { tree: System::Pio, records: 5_000, operations: 100, frames: 4 };
        let played = play(wish).unwrap();
        let svg = tree_picture(&played);
        assert!(svg.matches("<rect").count() > played.geometry.pages() as usize);
        assert!(svg.contains("PIO B-tree") && svg.contains("inner node") && svg.ends_with("</svg>\n"));
        let page = tree_page(&played);
        let data = page.split("const data = ").nth(1).unwrap().split(";\n").next().unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["frames"].as_array().unwrap().len(), played.frames.len());
        for foreign in ["src=", "http", "@import"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert!(strength(0.0) > strength(0.5) && strength(1.0) > 0.0);
    }
}
