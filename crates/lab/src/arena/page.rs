//! The score as one page that needs no other file: the picture, and a table for every figure, red where we are not ahead.

use super::picture::picture;
use super::score::{Cell, Figure, OURS, Score};
use super::table::shown;
use crate::chart::{bytes, number};
use arena::{Codec, Disk, Kind, Workload};
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("../report/page.css");

/// What this page has beside the reports' style.
const MORE: &str = "body { max-width: 1200px; } td.behind { background: #fbdfd6; color: #8c2c0c; } \
                    td.ahead { background: #d7f0e2; color: #0b5c36; } td.ours { font-weight: 600; } \
                    .figures td, .figures th { text-align: right; } \
                    .figures td:first-child, .figures th:first-child { text-align: left; }";

/// The page.
pub(crate) fn page(score: &Score) -> String {
    let (ahead, raced) = standing(score);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Sapwood in the arena" }
                style { (PreEscaped(STYLE)) (PreEscaped(MORE)) }
            }
            body {
                header {
                    h1 { "Sapwood in the arena" }
                    p {
                        "Key-value stores race on one disk: each in a process of its own, all under the same memory limit "
                        "with the page cache in it, with the same keys and values. "
                        @if score.plan.repeat == 1 { "Each figure is of one run alone." } @else {
                            "Figures are medians of " (score.plan.repeat)
                            " repetitions; in small print the least and the most."
                        }
                    }
                    p.tally { "Ahead of every peer in " b { (ahead) } " of " (raced) " workloads." }
                }
                article {
                    h2 { "Rates, in measure of the fastest" }
                    figure role="img" aria-label="Rates by workload and store" { (PreEscaped(picture(score))) }
                }
                @for figure in Figure::ALL { (section(score, figure)) }
                (conditions(score))
            }
        }
    }
    .into_string()
}

/// In how many workloads we are ahead, and in how many there was somebody to be ahead of.
fn standing(score: &Score) -> (usize, usize) {
    let ratios = score.plan.workloads.iter().filter_map(|workload| score.against(Figure::Rate, *workload));
    ratios.fold((0, 0), |(ahead, raced), (_, ratio)| (ahead + usize::from(ratio > 1.0), raced + 1))
}

fn section(score: &Score, figure: Figure) -> Markup {
    let cells = |workload: Workload| -> Vec<(&str, Cell)> {
        let cell = |engine: &'_ String| score.cell(figure, engine, workload);
        score.plan.engines.iter().map(|engine| (engine.as_str(), cell(engine))).collect()
    };
    let rows: Vec<_> = score.plan.workloads.iter().map(|workload| (*workload, cells(*workload))).collect();
    let is_shown = |cell: &Cell| cell.figure.is_some() || (figure == Figure::Rate && cell.missing.is_some());
    let rows: Vec<_> =
        rows.into_iter().filter(|(_, cells)| cells.iter().any(|cell| is_shown(&cell.1))).collect();
    let device = figure == Figure::Rate && score.profile.is_some();
    html! {
        @if !rows.is_empty() {
            article {
                h2 { (figure.title()) }
                div.wide {
                    table.figures {
                        thead {
                            tr {
                                th { "workload" }
                                @for engine in &score.plan.engines { th { (engine) } }
                                @if device { th { "disk alone" } }
                                th { "Sapwood against the best peer" }
                            }
                        }
                        tbody {
                            @for (workload, cells) in &rows {
                                tr {
                                    td { (workload.title()) @if figure == Figure::Rate { ", " (workload.unit()) } }
                                    @for (engine, cell) in cells { (place(engine, cell)) }
                                    @if device {
                                        td.quiet { @if let Some(limit) = score.device_limit(*workload) { (number(limit)) } }
                                    }
                                    (ratio(score, figure, *workload))
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn place(engine: &str, cell: &Cell) -> Markup {
    let class = if engine == OURS { "ours" } else { "" };
    html! {
        td class=(class) title=[cell.missing.as_deref()] {
            (shown(cell))
            @if let Some([_, least, most]) = cell.figure {
                @if most > least { br; span.quiet { (number(least)) " to " (number(most)) } }
            }
            @if let Some(done) = cell.capped {
                br; span.quiet { "stopped at " (format!("{:.0}", done * 100.0)) " %" }
            }
        }
    }
}

fn ratio(score: &Score, figure: Figure, workload: Workload) -> Markup {
    match score.against(figure, workload) {
        Some((peer, ratio)) => {
            let class = if ratio > 1.0 { "ahead" } else { "behind" };
            html! { td class=(class) { (format!("{ratio:.2}")) " × " (peer) } }
        }
        None => html! { td {} },
    }
}

fn conditions(score: &Score) -> Markup {
    let (plan, machine) = (&score.plan, &score.machine);
    let kind = match plan.records.kind {
        Kind::Incompressible => "incompressible",
        Kind::Half => "half compressible",
        Kind::Events => "JSON events",
        Kind::Text => "parts of a text",
    };
    let codec = match (plan.records.kind.is_compressible(), plan.codec) {
        (false, _) => "",
        (true, Codec::Lz4) => ", LZ4 where a store compresses",
        (true, Codec::Zstd) => ", Zstandard or LZ4 where a store compresses",
        (true, Codec::Dictionary) => ", Zstandard with a dictionary, or LZ4, where a store compresses",
    };
    let counted = if score.device_counts { "the device's counters" } else { "the worker process's counters" };
    html! {
        article {
            h2 { "Conditions" }
            p {
                (plan.records.count) " records of " (plan.records.key_len) " + " (plan.records.value_len) " bytes, "
                (bytes(plan.bytes() as f64)) " in all, values " (kind) (codec) "; memory limit " (bytes(plan.memory as f64)) ": "
                (score.fence) "."
                @if plan.disk == Disk::Second { " Each peer took its second-best way to the disk." }
            }
            p {
                "Workloads that end with their work had " (plan.limits.cap.as_secs_f64()) " s for it, the others ran for "
                (plan.limits.steady.as_secs_f64()) " s after " (plan.limits.warm_up.as_secs_f64())
                " s that do not count. A tilde marks who was stopped by the limit: the rate is the one that it had until "
                "then. Bytes are those of " (counted) ", with what was still written within "
                (plan.settle.as_secs_f64()) " s after the workload."
            }
            p.quiet {
                (score.date) ", " code { (score.command) } ", version " (score.version) ", " (machine.system) ", "
                (machine.processors) " processors"
                @if let Some(file_system) = &machine.file_system { ", " (file_system) }
                @for note in &score.notes { "; " (note) }
            }
            @let reasons = score.reasons();
            @if !reasons.is_empty() {
                h3 { "What is missing, and why" }
                ul { @for reason in &reasons { li { (reason) } } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::score::tests::score;

    #[test]
    fn the_page_has_everything_and_needs_nothing() {
        let page = page(&score());
        for figure in Figure::ALL {
            let shown = page.contains(&format!("<h2>{}</h2>", figure.title()));
            // Nothing was sampled, and there were no transactions.
            assert_eq!(shown, !matches!(figure, Figure::Anonymous | Figure::Conflicts), "{figure:?}");
        }
        assert!(page.contains("Ahead of every peer in <b>1</b> of 2 workloads"));
        assert!(
            page.contains("class=\"behind\">0.50 × fast") && page.contains("class=\"ahead\">4.00 × slow")
        );
        assert!(page.contains("stopped at 25 %") && page.contains("disk alone"));
        assert_eq!(page.matches("<svg").count(), 1);
        for foreign in ["<script", "src=", "href=\"http", "url(", "@import"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn what_comes_from_stores_is_escaped() {
        let page = page(&score());
        assert!(
            page.contains("it &lt;died&gt;") && page.contains("a &lt;note&gt;") && !page.contains("<died>")
        );
    }
}
