//! The plan of a benchmark, from the options.

use super::args::BenchArgs;
use farblock_bench::{Pattern, Plan};
use farblock_program::args::Global;
use farblock_program::error::{Failure, Result};

/// The minimum number of runs of each disk with `--until-known`. Fewer runs give a confidence
/// interval that is too wide to be useful.
const LEAST_RUNS: u32 = 3;
/// The maximum number of runs of each disk with `--until-known`, even if the confidence interval is
/// still too wide.
const MOST_RUNS: u32 = 10;

pub(super) fn plan(args: &BenchArgs, global: &Global) -> Result<Plan> {
    let mut plan = if args.full { Plan::full() } else { Plan::quick() };
    if let Some(rw) = args.rw {
        let (jobs, depth) = (args.numjobs.unwrap_or(1), args.iodepth.unwrap_or(1));
        let mut pattern = Pattern::new(rw, args.bs.unwrap_or(4096), jobs, depth);
        pattern.rwmixread = args.rwmixread.unwrap_or(pattern.rwmixread);
        pattern.rate_iops = args.rate_iops;
        pattern.validate().map_err(Failure::usage)?;
        plan.patterns = vec![pattern];
        // Use an explicit number of jobs, even if it exceeds the number of cores.
        plan.max_jobs = Some(jobs);
    } else if !args.patterns.is_empty() {
        plan.patterns = chosen(plan.patterns, &args.patterns)?;
    }
    plan.runtime = args.runtime.unwrap_or(plan.runtime);
    plan.runs = args.runs.unwrap_or(plan.runs);
    if args.until_known {
        plan.runs = plan.runs.max(LEAST_RUNS);
        plan.most_runs = Some(MOST_RUNS);
    }
    plan.ramp = args.ramp_time.unwrap_or(plan.ramp);
    plan.allow_writes = args.allow_writes;
    plan.size = args.size;
    plan.reactor = global.reactor();
    plan.connections = args.connections;
    Ok(plan)
}

/// The patterns whose names contain one of the words as a whole word: `4k` does not select
/// `64k-random-read`.
fn chosen(patterns: Vec<Pattern>, words: &[String]) -> Result<Vec<Pattern>> {
    let holds = |pattern: &Pattern, word: &String| {
        format!("-{}-", pattern.slug()).contains(&format!("-{}-", word.to_lowercase()))
    };
    for word in words {
        if word.is_empty() || !patterns.iter().any(|pattern| holds(pattern, word)) {
            let names: Vec<String> = patterns.iter().map(Pattern::slug).collect();
            return Err(Failure::usage(format_args!(
                "no pattern is called {word:?}: use words of {}",
                names.join(", ")
            )));
        }
    }
    Ok(patterns.into_iter().filter(|one| words.iter().any(|word| holds(one, word))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_chosen_by_whole_words_of_their_names() {
        let names = |words: &[&str]| -> Result<Vec<String>> {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            Ok(chosen(Pattern::six(), &words)?.iter().map(Pattern::slug).collect())
        };
        assert_eq!(names(&["4k-random-read"]).unwrap(), ["4k-random-read"]);
        assert_eq!(names(&["1M", "64k-random-write"]).unwrap().len(), 3);
        assert_eq!(names(&["4k"]).unwrap().len(), 2);
        assert!(names(&["read"]).unwrap().iter().all(|name| !name.contains("write")));
        let Err(Failure::Usage(text)) = names(&["2k"]) else {
            panic!("an unknown pattern name was accepted")
        };
        assert!(text.contains("\"2k\"") && text.contains("1m-sequential-write"), "{text}");
        assert!(names(&[""]).is_err());
    }
}
