//! The score as tables for a terminal: red where we are not ahead.

use super::score::{Cell, Figure, OURS, Score};
use crate::chart::number;
use arena::Workload;
use std::fmt::Write;

/// The figures that a terminal shows; the page shows all.
const SHOWN: [Figure; 5] = [Figure::Rate, Figure::P999, Figure::Written, Figure::Space, Figure::Conflicts];

/// Room for the longest name of a workload, and a space.
const NAME: usize = 19;

const RED: &str = "\u{1b}[31m";
const PLAIN: &str = "\u{1b}[0m";

/// Tables of the score; with colours if `colours` says so.
pub(crate) fn table(score: &Score, colours: bool) -> String {
    let mut text = String::new();
    for figure in SHOWN {
        part(&mut text, score, figure, colours);
    }
    for reason in score.reasons() {
        line(&mut text, &format!("missing: {reason}"));
    }
    line(&mut text, &format!("memory limit: {}", score.fence));
    for note in &score.notes {
        line(&mut text, &format!("note: {note}"));
    }
    text.trim_end().to_owned()
}

fn line(text: &mut String, line: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{line}");
}

fn part(text: &mut String, score: &Score, figure: Figure, colours: bool) {
    let has = |workload: &Workload| {
        score.plan.engines.iter().any(|engine| {
            let cell = score.cell(figure, engine, *workload);
            cell.figure.is_some() || (figure == Figure::Rate && cell.missing.is_some())
        })
    };
    let workloads: Vec<Workload> = score.plan.workloads.iter().copied().filter(has).collect();
    if workloads.is_empty() {
        return;
    }
    let device = figure == Figure::Rate && score.profile.is_some();
    let mut head = format!("{:<NAME$}", "");
    for engine in &score.plan.engines {
        let _ = write!(head, "{engine:>12}");
    }
    if device {
        head.push_str("   disk alone");
    }
    head.push_str("   sapwood against the best peer");
    line(text, &format!("{} (median of {})", figure.title(), score.plan.repeat));
    line(text, &head);
    for workload in workloads {
        let mut row = format!("{workload:<NAME$}");
        for engine in &score.plan.engines {
            let _ = write!(row, "{:>12}", shown(&score.cell(figure, engine, workload)));
        }
        if device {
            let limit = score.device_limit(workload).map(number);
            let _ = write!(row, "{:>13}", limit.unwrap_or_default());
        }
        if let Some((peer, ratio)) = score.against(figure, workload) {
            let (red, plain) = if colours && ratio <= 1.0 { (RED, PLAIN) } else { ("", "") };
            let mark = if ratio <= 1.0 { " behind" } else { "" };
            let _ = write!(row, "   {red}{ratio:.2} x {peer}{mark}{plain}");
        }
        line(text, row.trim_end());
    }
    if figure == Figure::Rate && score.plan.engines.iter().any(|engine| engine == OURS) {
        line(text, "~: stopped at its time limit, at the rate that it had; -: nothing, see below");
    }
    line(text, "");
}

/// A figure as people read it; one that was stopped by its time limit has a tilde.
pub(crate) fn shown(cell: &Cell) -> String {
    match cell.figure {
        Some([median, ..]) if cell.capped.is_some() => format!("~{}", number(median)),
        Some([median, ..]) => number(median),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::score::tests::score;

    #[test]
    fn every_store_has_its_place_and_red_is_where_we_are_behind() {
        let text = table(&score(), true);
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        let update = row("update");
        assert!(update.contains("200") && update.contains("400") && update.contains("~20"), "{update}");
        assert!(update.contains(&format!("{RED}0.50 x fast behind{PLAIN}")), "{update}");
        let load = row("random-load");
        assert!(load.contains("4.00 x slow") && !load.contains(RED) && load.contains(" - "), "{load}");
        assert!(text.contains("missing: fast, random-load: it <died>") && text.contains("note: a <note>"));
        assert!(text.contains("disk alone") && text.contains("bytes written for a byte"));
        assert!(!table(&score(), false).contains('\u{1b}'));
    }
}
