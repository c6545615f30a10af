//! `sapwood map`: the segments of the data file, as a table or as a picture.
//!
//! ```text
//! row by row the file, from its beginning:
//!   ▏▄▄▄▄▄▄▄▏▁▁▁▏███████▏      ▏▅▅▅▅▅▏     a frame: a segment; its colour: its age; how high it is filled: how much of it is live;
//!                                          orange at the top of that: log pieces; no frame: free
//! ```

use crate::arguments::Map;
use crate::command::Opening;
use crate::failure::{Failure, Result};
use crate::file;
use crate::output::print;
use sapwood::SegmentInfo;
use std::fmt::Write;

/// The picture in pixels: the file's rows, their height and distance, the margin, and what stands above and below.
const WIDTH: f64 = 1024.0;
const ROW: f64 = 22.0;
const PITCH: f64 = 28.0;
const MARGIN: f64 = 24.0;
const HEAD: f64 = 84.0;
const ROWS_MAX: u64 = 48;
/// No row has fewer bytes, so that a small database is one row and not a page.
const ROW_MIN: u64 = 4 << 20;

pub(crate) fn run(options: &Map, opening: Opening) -> Result<()> {
    let segments = opening.to_read(&options.db)?.segments();
    if let Some(path) = &options.svg {
        return file::draw(path, &svg(&options.db.display().to_string(), &segments));
    }
    if options.json {
        let json = serde_json::to_string_pretty(&segments);
        return print(json.map_err(|error| Failure::Other(error.to_string()))?);
    }
    print(table(&segments))
}

fn percent(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { 100.0 * part as f64 / of as f64 }
}

/// A line for each segment, in the order of the file.
fn table(segments: &[SegmentInfo]) -> String {
    let mut text = String::from("segment         offset        bytes   live %  in log pieces %");
    for segment in in_file_order(segments) {
        let (number, offset, used) = (segment.number, segment.offset, segment.used);
        let live = percent(segment.live, used);
        let logged = percent(segment.logged, used);
        let open = if segment.is_open { "  open" } else { "" };
        let _ = write!(text, "\n{number:>7} {offset:>14} {used:>12} {live:>8.1} {logged:>16.1}{open}");
    }
    let (live, used) = sums(segments);
    let count = segments.len();
    let _ = write!(text, "\n{count} segments, {live} of {used} bytes live ({:.1} %)", percent(live, used));
    text
}

fn in_file_order(segments: &[SegmentInfo]) -> Vec<&SegmentInfo> {
    let mut sorted: Vec<_> = segments.iter().collect();
    sorted.sort_by_key(|segment| segment.offset);
    sorted
}

fn sums(segments: &[SegmentInfo]) -> (u64, u64) {
    let sum = |of: fn(&SegmentInfo) -> u64| segments.iter().map(of).sum();
    (sum(|segment| segment.live), sum(|segment| segment.used))
}

/// The colour of an age, 0 (oldest) to 1: dark blue to light green.
fn colour(age: f64) -> String {
    let mix = |from: f64, to: f64| (from + (to - from) * age).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(38.0, 150.0), mix(70.0, 208.0), mix(130.0, 120.0))
}

/// Text as it may stand in XML.
fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The picture.
fn svg(name: &str, segments: &[SegmentInfo]) -> String {
    let end = segments.iter().map(|segment| segment.offset + segment.len).max().unwrap_or(0).max(1);
    let row_bytes = end.div_ceil(ROWS_MAX).max(ROW_MIN).min(end.max(1));
    let rows = end.div_ceil(row_bytes);
    let (width, height) = (WIDTH + 2.0 * MARGIN, HEAD + rows as f64 * PITCH + MARGIN);
    let (live, used) = sums(segments);
    let mut ages: Vec<u64> = segments.iter().map(|segment| segment.number).collect();
    ages.sort_unstable();
    let age = |number: u64| {
        let rank = ages.partition_point(|other| *other < number);
        rank as f64 / (ages.len().max(2) - 1) as f64
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#282828\"><rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{MARGIN}\" y=\"28\" font-size=\"17\">{}: {} segments, {:.1} of {:.1} MiB live ({:.1} %)</text>\n",
        xml(name),
        segments.len(),
        mib(live),
        mib(used),
        percent(live, used)
    );
    legend(&mut svg, row_bytes);
    for segment in in_file_order(segments) {
        let fill = colour(age(segment.number));
        let (number, share) = (segment.number, percent(segment.live, segment.used));
        let open = if segment.is_open { ", being written" } else { "" };
        let _ = write!(
            svg,
            "<g><title>segment {number} at {:.2} MiB of the file: {:.2} MiB written, {share:.1} % live, {:.1} % in log pieces{open}</title>",
            mib(segment.offset),
            mib(segment.used),
            percent(segment.logged, segment.used)
        );
        let mut at = segment.offset;
        let last = segment.offset + segment.len;
        while at < last {
            let row = at / row_bytes;
            let until = last.min((row + 1) * row_bytes);
            let scale = WIDTH / row_bytes as f64;
            let x = MARGIN + (at - row * row_bytes) as f64 * scale;
            let y = HEAD + row as f64 * PITCH;
            let wide = (until - at) as f64 * scale;
            let of = segment.used.max(1) as f64;
            let (alive, logged) = (ROW * segment.live as f64 / of, ROW * segment.logged as f64 / of);
            let stroke = if segment.is_open { "#c02020" } else { "#808080" };
            let _ = write!(
                svg,
                "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{wide:.2}\" height=\"{ROW}\" fill=\"#f2f2f2\" stroke=\"{stroke}\" stroke-width=\"0.6\"/>\
                 <rect x=\"{x:.2}\" y=\"{:.2}\" width=\"{wide:.2}\" height=\"{alive:.2}\" fill=\"{fill}\"/>\
                 <rect x=\"{x:.2}\" y=\"{:.2}\" width=\"{wide:.2}\" height=\"{logged:.2}\" fill=\"#f0a030\"/>",
                y + ROW - alive,
                y + ROW - alive
            );
            at = until;
        }
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn legend(svg: &mut String, row_bytes: u64) {
    let mut x = MARGIN;
    let mut entry = |svg: &mut String, fill: &str, text: &str| {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"46\" width=\"14\" height=\"14\" fill=\"{fill}\" stroke=\"#808080\" stroke-width=\"0.6\"/>\
             <text x=\"{}\" y=\"58\">{text}</text>",
            x + 20.0
        );
        x += 34.0 + 7.0 * text.len() as f64;
    };
    entry(svg, &colour(0.0), "live, oldest segment");
    entry(svg, &colour(1.0), "live, newest");
    entry(svg, "#f0a030", "live, in log pieces");
    entry(svg, "#f2f2f2", "dead, or not written yet");
    entry(svg, "#ffffff", &format!("free; a row is {:.1} MiB of the file", mib(row_bytes)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a database of changes looks like, once through the program's own eyes.
    fn segments() -> Vec<SegmentInfo> {
        let builder =
            sapwood::Database::builder().memory(4 << 20).segment_span(1 << 20).background_threads(0);
        let builder = builder.compression(sapwood::Compression::None);
        let db = builder.open_on(std::sync::Arc::new(psync::Simulated::new(1))).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.ingest((0..30_000u32).map(|number| (number.to_be_bytes(), [7; 50]))).unwrap();
        let mut batch = db.batch();
        (0..30_000u32)
            .step_by(40)
            .for_each(|number| _ = batch.insert(&keyspace, number.to_be_bytes(), [8; 50]));
        batch.commit().unwrap();
        db.flush().unwrap();
        let segments = db.segments();
        assert!(segments.len() > 2 && segments.iter().any(|segment| 0 < segment.logged));
        segments
    }

    fn numbers(svg: &str, name: &str) -> Vec<f64> {
        let attribute = format!(" {name}=\"");
        svg.split(&attribute)
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().parse().unwrap_or(-1.0))
            .collect()
    }

    #[test]
    fn the_picture_has_each_segment_inside_its_frame() {
        let segments = segments();
        let svg = svg("a<b>&c", &segments);
        assert!(svg.contains("a&lt;b&gt;&amp;c: ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<title>segment ").count(), segments.len());
        let (width, height) = (numbers(&svg, "width")[0], numbers(&svg, "height")[0]);
        assert!(numbers(&svg, "x").iter().all(|x| (0.0..width).contains(x)));
        assert!(numbers(&svg, "y").iter().all(|y| (0.0..height).contains(y)));
        // Three rectangles of each row of each segment: the frame, what is live, what is in log pieces.
        let body = svg.split("<g>").skip(1).map(|group| numbers(group, "height"));
        for (heights, segment) in body.zip(in_file_order(&segments)) {
            for row in heights.chunks(3) {
                let part = segment.live as f64 / segment.used.max(1) as f64;
                assert!((row[1] / row[0] - part).abs() < 0.01 && row[2] <= row[1], "{row:?} {segment:?}");
            }
        }
    }

    #[test]
    fn the_table_has_a_line_for_each_segment_and_the_sum() {
        let segments = segments();
        let table = table(&segments);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), segments.len() + 2);
        let (live, used) = sums(&segments);
        assert!(lines[lines.len() - 1].contains(&format!("{live} of {used} bytes live")));
        assert!(lines[1].trim_start().starts_with(&in_file_order(&segments)[0].number.to_string()));
    }

    #[test]
    fn an_empty_database_has_a_picture_too() {
        let svg = svg("empty", &[]);
        assert!(svg.contains("0 segments, 0.0 of 0.0 MiB live") && !svg.contains("NaN"));
        assert_eq!(table(&[]).lines().count(), 2);
    }
}
