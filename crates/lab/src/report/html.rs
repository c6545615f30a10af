//! The page: all experiments with their pictures, verdicts and figures, in one file that needs no other.

use super::{Chapter, cause, chapters, tally};
use crate::chart::{Chart, number};
use crate::failure::Result;
use crate::judgement::{Check, Kind, Outcome, Verdict};
use crate::record::Record;
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("page.css");

/// The page of these records, which are in order.
pub(crate) fn html(records: &[Record]) -> Result<String> {
    let chapters = chapters(records)?;
    let bodies = chapters.iter().map(chapter).collect::<Result<Vec<_>>>()?;
    let tally = tally(records);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Sapwood: the published experiments, run again" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "The published experiments, run again" }
                    p {
                        "Papers on flash claim shapes: this is faster than that, by so much, from there on. Each "
                        "experiment here asks one such claim again, on a disk or on a simulated SSD, and says whether "
                        "it holds. Simulated times and wall-clock times are never compared with each other: read each "
                        "picture by itself."
                    }
                    p.tally {
                        @for (verdict, count) in Verdict::ALL.into_iter().zip(tally) {
                            (badge(verdict)) " " (count) " "
                        }
                    }
                    (contents(&chapters))
                }
                @for body in &bodies { (body) }
                footer {
                    p {
                        "Figures are medians of the runs, as many as each section says; least and most of them are the "
                        "thin bars. Made by " code { "sapwood-lab report" } ", version " (env!("CARGO_PKG_VERSION")) "."
                    }
                }
            }
        }
    };
    Ok(page.into_string())
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::DoesNotHold => "fails",
        Verdict::NotJudged | Verdict::NotApplicable => "apart",
    }
}

fn badge(verdict: Verdict) -> Markup {
    html! { span.badge.(class(verdict)) { (verdict.to_string()) } }
}

fn contents(chapters: &[Chapter<'_>]) -> Markup {
    html! {
        table.contents {
            thead { tr { th { "" } th { "experiment" } th { "paper" } th { "verdict" } } }
            tbody {
                @for chapter in chapters {
                    @let card = chapter.experiment.card();
                    tr {
                        td { a href={ "#" (card.id()) } { (card.id()) } }
                        td { (card.title) }
                        td.quiet { (card.source) }
                        td {
                            @for record in &chapter.records {
                                div { (record.place()) " " (badge(record.verdict())) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn chapter(chapter: &Chapter<'_>) -> Result<Markup> {
    let card = chapter.experiment.card();
    let sections = chapter.records.iter().map(|record| section(record)).collect::<Result<Vec<_>>>()?;
    Ok(html! {
        article id=(card.id()) {
            h2 { (card.id()) ": " (card.title) }
            p { (card.question) }
            p.quiet { b { "The paper: " } (card.reported) " (" (card.source) ")" }
            @for section in &sections { (section) }
            @for (device, why) in card.absent {
                p.quiet { b { "Not on " (device.to_string()) ": " } (why) "." }
            }
        }
    })
}

fn section(record: &Record) -> Result<Markup> {
    let (chart, picture) = (record.chart()?, record.picture()?);
    let machine = &record.machine;
    Ok(html! {
        section {
            h3 { "On " (record.place()) " " (badge(record.verdict())) }
            figure role="img" aria-label=(chart.title) { (PreEscaped(picture)) }
            table {
                thead { tr { th { "claim" } th { "paper" } th { "here" } th { "outcome" } } }
                tbody {
                    @for check in &record.judgement.checks {
                        tr {
                            td { (check.claim) }
                            td { (check.paper) }
                            td { (check.ours) }
                            td.(mark(check)) { (check.label()) }
                        }
                        @if let Some(cause) = cause(record, check) {
                            tr.cause { td colspan="4" { b { "Cause: " } (cause) } }
                        }
                    }
                }
            }
            p.quiet {
                (record.date) ", " code { (record.command) } ", " (record.measured.runs()) ", " (machine.system) ", "
                (machine.processors) " processors"
                @if let Some(file_system) = &machine.file_system { ", " (file_system) }
                ", " (number(record.seconds)) " s"
                @for note in &record.notes { "; " (note) }
            }
            details {
                summary { "Settings" }
                table {
                    thead { tr { th { "setting" } th { "published" } th { "used" } } }
                    tbody {
                        @for parameter in &record.parameters {
                            tr { td { (parameter.name) } td { (parameter.published) } td { (parameter.used) } }
                        }
                    }
                }
            }
            details {
                summary { "Figures of the picture: median (least to most)" }
                (points(&chart))
            }
        }
    })
}

fn mark(check: &Check) -> &'static str {
    match (check.outcome, check.kind) {
        (Outcome::Fails, Kind::Claim | Kind::Invariant) => "fails",
        (Outcome::Holds, Kind::Claim) => "holds",
        _ => "apart",
    }
}

fn points(chart: &Chart) -> Markup {
    let mut places: Vec<f64> =
        chart.lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    html! {
        p.quiet { (chart.y.label) }
        div.wide {
            table.figures {
                thead { tr { th { (chart.x.label) } @for line in &chart.lines { th { (line.name) } } } }
                tbody {
                    @for place in places {
                        tr {
                            td { (chart.x.scale.name(place)) }
                            @for line in &chart.lines {
                                @match line.points.iter().find(|point| point.0 == place) {
                                    Some((_, spread)) => td {
                                        (number(spread.median)) " "
                                        span.quiet { "(" (number(spread.min)) " to " (number(spread.max)) ")" }
                                    },
                                    None => td {},
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn the_page_has_everything_and_needs_nothing() {
        let page = html(&[record(2.0), Record { device: crate::Device::Ssdsim, ..record(64.0) }]).unwrap();
        for text in ["E2: Bandwidth of 4 KiB requests by depth", "requests at a time</text>", "does not hold"]
        {
            assert!(page.contains(&text.replace("</text>", "")), "{text}");
        }
        assert_eq!(page.matches("<svg").count(), 2);
        assert_eq!(page.matches("<article").count(), 1);
        assert!(
            page.contains("Cause: ") && page.contains("</code>, one run, ") && !page.contains("of 5 runs")
        );
        for foreign in ["<script", "src=", "href=\"http", "url(", "@import"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn what_comes_from_records_is_escaped() {
        let mut strange = record(64.0);
        strange.notes.push("<b>&".into());
        assert!(html(&[strange]).unwrap().contains("&lt;b&gt;&amp;"));
    }
}
