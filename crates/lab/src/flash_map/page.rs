//! All frames as one page that plays them, and needs no other file.

use super::Played;
use maud::{DOCTYPE, PreEscaped, html};
use serde::Serialize;

const SCRIPT: &str = include_str!("play.js");
const STYLE: &str = include_str!("play.css");

/// What the script draws.
#[derive(Serialize)]
struct Data {
    rows: u32,
    columns: u32,
    channels: u32,
    pages: u32,
    erases_max: u32,
    frames: Vec<Moment>,
}

#[derive(Serialize)]
struct Moment {
    seconds: f64,
    written: u64,
    amplification: f64,
    live: Vec<u32>,
    used: Vec<u32>,
    erases: Vec<u32>,
}

/// The page.
pub(crate) fn page(played: &Played) -> String {
    let frames = played.frames.iter().map(|frame| Moment {
        seconds: frame.seconds,
        written: frame.written,
        amplification: frame.amplification,
        live: frame.blocks.iter().map(|block| block.live.unwrap_or(0)).collect(),
        used: frame.blocks.iter().map(|block| block.used).collect(),
        erases: frame.blocks.iter().map(|block| block.erases).collect(),
    });
    let data = Data {
        rows: played.geometry.units(),
        columns: played.geometry.blocks_per_plane,
        channels: played.geometry.channels,
        pages: played.geometry.pages_per_block,
        erases_max: played.erases_max(),
        frames: frames.collect(),
    };
    // Numbers only, so that nothing in it can end the script.
    let data = serde_json::to_string(&data).expect("finite numbers");
    let geometry = played.geometry;
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
                    "A simulated SSD from above: " (geometry.channels) " channels of " (geometry.dies_per_channel)
                    " dies, a row for each die, a square for each block of " (geometry.pages_per_block)
                    " pages. Flash cannot be overwritten: a page that the host writes again goes elsewhere, and the old "
                    "one is dead until its whole block is erased. Before that, what still lives in the block must be "
                    "copied: those copies are the write amplification."
                }
                div.controls {
                    button #toggle { "Pause" }
                    input #frame type="range" min="0" max=(played.frames.len() - 1) value="0" aria-label="frame";
                    label { "speed " select #speed {
                        option value="4" { "slow" }
                        option value="12" selected { "normal" }
                        option value="40" { "fast" }
                    } }
                }
                p #told {}
                div.panels {
                    figure {
                        figcaption {
                            "Pages: " span.key.live {} " live " span.key.dead {} " dead " span.key.free {} " free"
                        }
                        canvas #pages {}
                    }
                    figure {
                        figcaption { "Wear: " span.key.wear {} " never erased to " (played.erases_max()) " times" }
                        canvas #wear {}
                    }
                }
                p #block { "Point at a block." }
                figure {
                    figcaption { "Pages programmed for each that the host wrote, over what it has written" }
                    canvas #line {}
                }
                script { (PreEscaped("const data = ")) (PreEscaped(data)) (PreEscaped(";\n")) (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

#[cfg(test)]
mod tests {
    use super::super::{Overwrites, Play, play};
    use super::*;

    #[test]
    fn the_page_holds_every_frame_and_needs_nothing() {
        let wish = Play { overwrites: Overwrites::Hot, over_provision: 0.2, rounds: 1, frames: 6 };
        let played = play(wish).unwrap();
        let page = page(&played);
        let data = page.split("const data = ").nth(1).unwrap().split(";\n").next().unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        let frames = data["frames"].as_array().unwrap();
        assert_eq!(frames.len(), played.frames.len());
        assert_eq!(frames[3]["live"].as_array().unwrap().len(), played.geometry.blocks() as usize);
        for foreign in ["src=", "http", "@import"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }
}
