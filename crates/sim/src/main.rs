//! `sim`: runs the simulator. Exit codes: 0 if all passed, 1 if something failed, 2 for wrong
//! usage.

use hindcast_engine::disk::SyncPurpose;
use hindcast_sim::{
    Caught, Crash, CrashPoint, Cut, DEFAULT_OPS, Mutation, Part, PowerLoss, Script, Shape, Summary,
};
use hindcast_sim::{enumerate, mutate, random_run, run_script, scripts};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: sim --seed N [--verbose]              one seed; --verbose tells every step
       sim --seeds N [--from S] [--jobs J]   many seeds
       sim --enumerate [NAME]                scripts, crashed at every disk operation and every sync
       sim --enumerate NAME --cut CUT        one cut of one script, as a failure names it
       sim --mutate [PURPOSE|RULE]           drop the syncs of each purpose, or break each rule (if built with the
                                             feature mutations), and demand that it is noticed
other: --ops N        operations per seed (120)
       --drop-sync PURPOSE   for --seed, --seeds and --cut: syncs of this purpose do nothing
       --break RULE          for --seed, --seeds, --enumerate and --cut: the engine breaks this rule
       --part K/N            for --enumerate: every N-th cut of each script, from the K-th on (1/2 or 2/2: one half)
       --sums                for --enumerate: all scripts have sums, not each second one
       --on LAYOUT           for --enumerate: scripts without a layout run on mirror, raid5 or raid5-wide, with sums; a
                             member may be lost with each cut, and its rebuild is cut again
       --verbose";

/// Prints a line. A closed standard output is no failure.
macro_rules! say {
    ($($arg:tt)*) => {{
        let _ = writeln!(std::io::stdout().lock(), $($arg)*);
    }};
}

/// A run that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(300);
/// Interval at which the run times are checked.
const TICK: Duration = Duration::from_millis(50);

#[derive(Default)]
struct Args {
    seed: Option<u64>,
    seeds: Option<u64>,
    from: u64,
    jobs: Option<usize>,
    ops: Option<u64>,
    enumerate: Option<Option<String>>,
    cut: Option<Cut>,
    part: Option<Part>,
    mutate: Option<Option<Mutation>>,
    dropped: Option<SyncPurpose>,
    sums: bool,
    on: Option<Shape>,
    verbose: bool,
}

fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1).collect()) {
        Ok(args) => args,
        Err(why) => {
            say!("{why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if !args.verbose {
        // A panic of the engine is a failure of a run, and the run reports it.
        std::panic::set_hook(Box::new(|_| {}));
    }
    let failed = match &args {
        Args { enumerate: Some(name), cut: Some(cut), .. } => one_cut(name.as_deref(), *cut, &args),
        Args { enumerate: Some(name), .. } => all_cuts(name.as_deref(), &args),
        Args { mutate: Some(purpose), .. } => mutations(*purpose, &args),
        Args { seed: Some(seed), .. } => many_seeds(*seed, 1, &args),
        Args { seeds: Some(count), .. } => many_seeds(args.from, *count, &args),
        _ => {
            say!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(words: Vec<String>) -> Result<Args, String> {
    let mut args = Args::default();
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            words.next().and_then(|v| v.parse().ok()).ok_or_else(|| format!("{word} needs a number"))
        };
        match word.as_str() {
            "--seed" => args.seed = Some(number()?),
            "--seeds" => args.seeds = Some(number()?),
            "--from" => args.from = number()?,
            "--jobs" => args.jobs = Some(number()?.max(1) as usize),
            "--ops" => args.ops = Some(number()?),
            "--sums" => args.sums = true,
            "--on" => args.on = Some(parse_shape(&words.next().unwrap_or_default())?),
            "--verbose" => args.verbose = true,
            "--enumerate" => args.enumerate = Some(words.next_if(|w| !w.starts_with("--"))),
            "--mutate" => {
                let name = words.next_if(|w| !w.starts_with("--"));
                args.mutate = Some(name.map(|name| mutation(&name)).transpose()?);
            }
            "--break" => break_rule(&words.next().unwrap_or_default())?,
            "--drop-sync" => args.dropped = Some(purpose(&words.next().unwrap_or_default())?),
            "--part" => args.part = Some(parse_part(&words.next().unwrap_or_default())?),
            "--cut" => args.cut = Some(parse_cut(&words.next().unwrap_or_default())?),
            _ => return Err(format!("unknown argument {word}")),
        }
    }
    Ok(args)
}

fn parse_part(words: &str) -> Result<Part, String> {
    let numbers = words.split_once('/').and_then(|(k, n)| Some((k.parse::<usize>().ok()?, n.parse().ok()?)));
    let part = numbers.filter(|(k, n)| (1..=*n).contains(k)).map(|(k, n)| Part { index: k - 1, of: n });
    part.ok_or_else(|| format!("--part {words}: it must be K/N, with K from 1 to N"))
}

fn parse_shape(name: &str) -> Result<Shape, String> {
    match name {
        "mirror" => Ok(Shape::Mirror),
        "raid5" => Ok(Shape::RAID5),
        "raid5-wide" => Ok(Shape::WIDE),
        _ => Err(format!("--on {name}: it must be mirror, raid5 or raid5-wide")),
    }
}

fn mutation(name: &str) -> Result<Mutation, String> {
    let found = Mutation::all().into_iter().find(|mutation| mutation.name() == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = Mutation::all().into_iter().map(Mutation::name).collect();
        format!("{name:?} is none of {}", names.join(", "))
    })
}

/// Lets all runs break a rule.
#[cfg(feature = "mutations")]
fn break_rule(name: &str) -> Result<(), String> {
    match mutation(name)? {
        Mutation::Broken(rule) => {
            hindcast_engine::Rule::break_in_all_pools(Some(rule));
            Ok(())
        }
        Mutation::Dropped(_) => Err(format!("--break {name}: it is a purpose of syncs; see --drop-sync")),
    }
}

#[cfg(not(feature = "mutations"))]
fn break_rule(name: &str) -> Result<(), String> {
    Err(format!("--break {name}: this program is built without the feature mutations"))
}

fn purpose(name: &str) -> Result<SyncPurpose, String> {
    let names: Vec<&str> = SyncPurpose::ALL.iter().map(|p| p.name()).collect();
    let found = SyncPurpose::ALL.into_iter().find(|p| p.name() == name);
    found.ok_or_else(|| format!("{name:?} is none of {}", names.join(", ")))
}

const CRASHES: [(&str, Crash); 9] = [
    ("kill", Crash::Kill),
    ("panic", Crash::Panic),
    ("lose-all", Crash::Power(PowerLoss::LoseAll)),
    ("keep-all", Crash::Power(PowerLoss::KeepAll)),
    ("subset", Crash::Power(PowerLoss::Subset)),
    ("tears", Crash::Power(PowerLoss::Tears)),
    ("prefix", Crash::Power(PowerLoss::Prefix)),
    ("suffix", Crash::Power(PowerLoss::Suffix)),
    ("by-disk", Crash::Power(PowerLoss::ByDisk)),
];

/// Returns a cut in one word, like `op:12:kill:0`.
fn name_cut(cut: &Cut) -> String {
    let (kind, at) = match cut.point {
        CrashPoint::Op(at) => ("op", at),
        CrashPoint::Sync(at) => ("sync", at),
    };
    let how = CRASHES.iter().find(|c| c.1 == cut.how).map_or("kill", |c| c.0);
    format!("{kind}:{at}:{how}:{}", cut.seed)
}

fn parse_cut(text: &str) -> Result<Cut, String> {
    let bad = || format!("{text:?} is no cut like op:12:kill:0");
    let parts: Vec<&str> = text.split(':').collect();
    let [kind, at, how, seed] = parts[..] else {
        return Err(bad());
    };
    let at = at.parse().map_err(|_| bad())?;
    let point = match kind {
        "op" => CrashPoint::Op(at),
        "sync" => CrashPoint::Sync(at),
        _ => return Err(bad()),
    };
    let how = CRASHES.iter().find(|c| c.0 == how).ok_or_else(bad)?.1;
    Ok(Cut { point, how, seed: seed.parse().map_err(|_| bad())? })
}

fn tell(line: &str) {
    say!("  {line}");
}

fn closing(what: &str, passed: u64, failed: u64, since: Instant, summary: &Summary) {
    say!(
        "{what}: {} operations, {} crashes, {} records, {} snapshots ({} at once), {} clones and rollbacks, \
         {} moments compared, {} opened before they were carried out, {} runs sorted, {} KiB by reference, {} KiB of history without a copy, {} streams taken in, {} snapshots deleted by policy, {} unflushed records lost, {} writes refused, {} catalogs full, {:.1} s",
        summary.ops,
        summary.crashes,
        summary.records,
        summary.snapshots,
        summary.most_snapshots,
        summary.clones,
        summary.moments_compared,
        summary.moments_waiting,
        summary.runs_sorted,
        summary.referred >> 10,
        summary.kept >> 10,
        summary.imports,
        summary.auto_deleted,
        summary.lost,
        summary.refused,
        summary.ran_full,
        since.elapsed().as_secs_f64()
    );
    say!("{passed} passed, {failed} failed");
}

fn jobs(args: &Args) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
    args.jobs.unwrap_or_else(cores)
}

fn many_seeds(from: u64, count: u64, args: &Args) -> u64 {
    let started = Instant::now();
    let ops = args.ops.unwrap_or(DEFAULT_OPS);
    let jobs = jobs(args).min(count.max(1) as usize);
    let (next, passed, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let summary = Mutex::new(Summary::default());
    let running: Vec<Mutex<Option<u64>>> = (0..jobs).map(|_| Mutex::new(None)).collect();
    let trace = args.verbose.then_some(tell as fn(&str));
    std::thread::scope(|scope| {
        for slot in &running {
            let (next, passed, failed, summary) = (&next, &passed, &failed, &summary);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return set(slot, None);
                    }
                    let seed = from + number;
                    set(slot, Some(seed));
                    match random_run(seed, ops, args.dropped, trace) {
                        Ok(done) => {
                            passed.fetch_add(1, Ordering::Relaxed);
                            summary.lock().unwrap_or_else(|e| e.into_inner()).add(&done);
                        }
                        Err(why) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                            say!("seed {seed} FAILED: {why}\n  repeat: {}", command(seed, args));
                        }
                    }
                }
            });
        }
        scope.spawn(|| watch(&running, &next, count, args));
    });
    let (passed, failed) = (passed.into_inner(), failed.into_inner());
    let summary = summary.into_inner().unwrap_or_else(|e| e.into_inner());
    closing(&format!("{count} seeds from {from}"), passed, failed, started, &summary);
    failed
}

fn set<T>(slot: &Mutex<T>, value: T) {
    *slot.lock().unwrap_or_else(|e| e.into_inner()) = value;
}

fn command(seed: u64, args: &Args) -> String {
    let ops = args.ops.map_or_else(String::new, |ops| format!(" --ops {ops}"));
    let dropped = args.dropped.map_or_else(String::new, |p| format!(" --drop-sync {}", p.name()));
    format!("sim --seed {seed}{ops}{dropped} --verbose")
}

/// Shows progress, and ends the process when a run hangs. Only time in which this thread wakes up
/// too counts, so a machine or a process that was stopped for a while causes no failure.
fn watch(running: &[Mutex<Option<u64>>], next: &AtomicU64, count: u64, args: &Args) {
    let mut last = Instant::now();
    // The seed of each thread, and the time for which it runs.
    let mut since = vec![(None, Duration::ZERO); running.len()];
    loop {
        std::thread::sleep(TICK);
        for (slot, (seed, time)) in running.iter().zip(&mut since) {
            let now = *slot.lock().unwrap_or_else(|e| e.into_inner());
            *time = if now == *seed { *time + TICK } else { Duration::ZERO };
            *seed = now;
        }
        let begun = next.load(Ordering::Relaxed).min(count);
        if begun >= count && since.iter().all(|(seed, _)| seed.is_none()) {
            return;
        }
        let hangs = |(seed, time): &(Option<u64>, Duration)| seed.filter(|_| *time > PATIENCE);
        if let Some(seed) = since.iter().find_map(hangs) {
            say!("seed {seed} FAILED: it hangs\n  repeat: {}", command(seed, args));
            std::process::exit(1);
        }
        if last.elapsed() > Duration::from_secs(10) {
            last = Instant::now();
            say!("{begun} of {count} seeds begun");
        }
    }
}

/// Returns the script of a name, or all, as the arguments want them.
fn scripts_of<'a>(name: Option<&'a str>, args: &'a Args) -> impl Iterator<Item = Script> + 'a {
    let wanted = scripts().into_iter().filter(move |script| name.is_none_or(|name| name == script.name));
    wanted.filter_map(|script| {
        let sums = script.sums || args.sums;
        match args.on {
            Some(shape) => script.on(shape),
            None => Some(Script { sums, ..script }),
        }
    })
}

/// Returns the arguments that change scripts, as words.
fn variant(args: &Args) -> String {
    let on = match args.on {
        None => "",
        Some(Shape::Mirror) => " --on mirror",
        Some(Shape::WIDE) => " --on raid5-wide",
        Some(Shape::Raid5 { .. }) => " --on raid5",
    };
    format!("{}{on}", if args.sums { " --sums" } else { "" })
}

fn all_cuts(name: Option<&str>, args: &Args) -> u64 {
    let started = Instant::now();
    let (mut passed, mut failed, mut summary) = (0, 0, Summary::default());
    for script in scripts_of(name, args) {
        match enumerate(&script, args.part.unwrap_or(Part::ALL), args.dropped, 10, jobs(args)) {
            Ok(done) => {
                say!("{}: {} cuts passed, {} failed", script.name, done.passed, done.failed.len());
                for (cut, why) in &done.failed {
                    let cut = name_cut(cut);
                    say!("{} cut at {cut} FAILED: {why}", script.name);
                    say!("  repeat: sim --enumerate {} --cut {cut}{} --verbose", script.name, variant(args));
                }
                passed += done.passed;
                failed += done.failed.len() as u64;
                summary.add(&done.summary);
            }
            Err(why) => {
                say!("FAILED: {why}\n  repeat: sim --enumerate {}{}", script.name, variant(args));
                failed += 1;
            }
        }
    }
    closing("enumeration", passed, failed, started, &summary);
    failed + u64::from(passed == 0)
}

fn one_cut(name: Option<&str>, cut: Cut, args: &Args) -> u64 {
    let Some(script) = scripts_of(name, args).next().filter(|_| name.is_some()) else {
        say!("no script {name:?}");
        return 1;
    };
    let trace = args.verbose.then_some(tell as fn(&str));
    match run_script(&script, Some(cut), args.dropped, trace) {
        Ok(_) => {
            say!("1 passed, 0 failed");
            0
        }
        Err(why) => {
            say!("{} cut at {} FAILED: {why}\n0 passed, 1 failed", script.name, name_cut(&cut));
            1
        }
    }
}

fn mutations(only: Option<Mutation>, args: &Args) -> u64 {
    let seeds = args.seeds.unwrap_or(2000);
    let ops = args.ops.unwrap_or(DEFAULT_OPS);
    let (mut passed, mut failed) = (0, 0);
    if cfg!(not(feature = "mutations")) {
        say!("SKIPPED: no rule is broken, because the feature mutations is off");
    }
    for mutation in Mutation::all().into_iter().filter(|m| only.is_none_or(|o| o == *m)) {
        let name = match mutation {
            Mutation::Dropped(purpose) => format!("{} syncs", purpose.name()),
            #[cfg(feature = "mutations")]
            Mutation::Broken(rule) => format!("rule {}", rule.name()),
        };
        match mutate(mutation, seeds, ops, jobs(args)) {
            Caught::Script(script, cut, why) => {
                say!("without {name}: script {script} cut at {} notices: {why}", name_cut(&cut));
                passed += 1;
            }
            Caught::Seed(seed, why) => {
                say!("without {name}: seed {seed} notices: {why}");
                passed += 1;
            }
            Caught::Never => {
                say!("without {name}: FAILED: nobody notices in all scripts and {seeds} seeds");
                failed += 1;
            }
        }
    }
    say!("{passed} passed, {failed} failed");
    failed
}
