//! The same as Markdown, for the documentation; the pictures are files beside it.

use super::{cause, chapters, tally};
use crate::failure::Result;
use crate::record::Record;
use std::fmt::Write;

/// The report on these records, which are in order. `pictures` is what leads to their files, empty or with a slash at
/// its end.
pub(crate) fn markdown(records: &[Record], pictures: &str) -> Result<String> {
    let [holds, does_not, not_judged, not_applicable] = tally(records);
    let mut text = format!(
        "# The published experiments, run again\n\n\
         Written by `sapwood-lab report` from recorded runs; the figures in it are those of the runs. Each experiment\n\
         asks a claim of a paper again, as a predicate over what was measured. Simulated times and wall-clock times are\n\
         never compared with each other. Figures are medians of as many runs as each record says. Runs are at scale ci unless\n\
         another is named. The verdicts here are given anew when this is written; those in the JSON files are of the day when\n\
         they were measured, by the predicates of then.\n\n\
         {holds} hold, {does_not} do not, {not_judged} are not judged, {not_applicable} are not applicable where they ran.\n\n\
         A verdict is about the claims of the paper alone. Beside them stand: *calibration* (the simulation was fitted to it),\n\
         *invariant* (it follows from how the systems are built), *not published* (a question of ours), *not judged* (a\n\
         figure, or a claim whose published setting was not run). Where a paper gives a band, the outcome says whether all\n\
         that was found is inside, or how it lies beside it. What of the papers is asked where, and how it differs from\n\
         what was published: [reproduction-referee.md](reproduction-referee.md).\n\n\
         | | experiment | device | verdict |\n|---|---|---|---|\n"
    );
    let chapters = chapters(records)?;
    for chapter in &chapters {
        let card = chapter.experiment.card();
        for record in &chapter.records {
            let (id, title, place, verdict) = (card.id(), card.title, record.place(), record.verdict());
            let _ = writeln!(text, "| {id} | {title} | {place} | {verdict} |");
        }
    }
    for chapter in &chapters {
        let card = chapter.experiment.card();
        let _ = writeln!(text, "\n## {}: {}\n\n{}\n", card.id(), card.title, card.question);
        let _ = writeln!(text, "**The paper** ({}): {}", card.source, card.reported);
        for record in &chapter.records {
            let (name, place, verdict) = (record.name(), record.place(), record.verdict());
            let machine = &record.machine;
            let file_system = machine.file_system.iter().map(|name| format!(", {name}")).collect::<String>();
            let _ = writeln!(
                text,
                "\n### {} on {place}: {verdict}\n\n![{}]({pictures}{name}.svg)\n\n\
                 {}, `{}`, {}, {}, {} processors{file_system}. Rows: [{name}.csv]({pictures}{name}.csv).\n\n\
                 | claim | paper | here | outcome |\n|---|---|---|---|",
                card.id(),
                cell(&record.chart()?.title),
                record.date,
                record.command,
                record.measured.runs(),
                machine.system,
                machine.processors,
            );
            for check in &record.judgement.checks {
                let [claim, paper, ours] = [&check.claim, &check.paper, &check.ours].map(|text| cell(text));
                let _ = writeln!(text, "| {claim} | {paper} | {ours} | {} |", check.label());
            }
            let mut told = Vec::new();
            for check in &record.judgement.checks {
                if let Some(cause) = cause(record, check)
                    && !told.contains(&cause)
                {
                    let _ = writeln!(text, "\nCause: {cause}");
                    told.push(cause);
                }
            }
            let settings = record.parameters.iter().map(|parameter| {
                format!("{}: {} (published: {})", parameter.name, parameter.used, parameter.published)
            });
            let _ = writeln!(text, "\nSettings: {}.", settings.collect::<Vec<_>>().join("; "));
            if !record.notes.is_empty() {
                let _ = writeln!(text, "\nNotes: {}.", record.notes.join("; "));
            }
        }
        for (device, why) in card.absent {
            let _ = writeln!(text, "\nNot on {device}: {why}.");
        }
    }
    Ok(text)
}

/// Text that is safe in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn every_record_has_its_verdict_picture_and_cause() {
        let text = markdown(&[record(2.0)], "reproduction/").unwrap();
        for part in [
            "| E2 | Bandwidth of 4 KiB requests by depth | disk | does not hold |",
            "### E2 on disk: does not hold",
            "](reproduction/E2-disk.svg)",
            "`sapwood-lab run E2 --device disk --scale ci`, one run, ",
            "more than 10 x",
            "Cause: ",
            "0 hold, 1 do not, 0 are not judged, 0 are not applicable",
            "Not on nand: ",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert!(!markdown(&[record(64.0)], "").unwrap().contains("Cause: "));
    }
}
