//! Tests of the command line as a whole: it parses the examples that the help shows, and each of
//! its errors is one line.

use crate::failure::Failure;
use crate::{Cli, one_line};
use clap::{CommandFactory, Parser};
use hindcast_api::{ClientError, ErrorBody, ErrorKind};

fn refused(args: &[&str]) -> String {
    one_line(&Cli::try_parse_from(args).unwrap_err().render().to_string())
}

#[test]
fn the_description_is_consistent() {
    Cli::command().debug_assert();
}

/// Splits an example into the words that a shell would see, up to a comment or a pipe.
fn words(line: &str) -> Vec<String> {
    let mut words = vec!["hindcast".to_owned()];
    // What is quoted has every other place.
    for (n, part) in line.split('\'').enumerate() {
        if n % 2 == 1 {
            words.last_mut().unwrap().push_str(part);
            continue;
        }
        let command = part.split("  ").next().unwrap().split(['|', '>', '&']).next().unwrap();
        for (n, word) in command.split(' ').enumerate() {
            match n {
                0 => words.last_mut().unwrap().push_str(word),
                _ => words.push(word.to_owned()),
            }
        }
        if command.len() < part.len() {
            break;
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Every example in every help text that is a plain `hindcast` command must parse.
#[test]
fn examples_in_the_help_parse() {
    fn walk(command: &clap::Command, seen: &mut usize) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines().filter_map(|l| l.strip_prefix("  hindcast")) {
            let words = words(line);
            if let Err(error) = Cli::try_parse_from(&words) {
                panic!("{words:?}: {error}");
            }
            *seen += 1;
        }
        command.get_subcommands().for_each(|sub| walk(sub, seen));
    }
    let mut seen = 0;
    walk(&Cli::command(), &mut seen);
    assert!(seen >= 15, "only {seen} examples were found");
}

#[test]
fn usage_errors_are_one_line_and_say_what_is_wrong() {
    for (args, part) in [
        (&["hindcast", "volume", "create", "db"][..], "--size <SIZE>"),
        (&["hindcast", "volume", "create", "db", "--size", "10X"], "K is 1024 bytes"),
        (&["hindcast", "volume", "create", "db", "--size", "1G", "--block", "1024"], "512 or 4096"),
        (&["hindcast", "volume", "set", "db"], "--read-only"),
        (&["hindcast", "volume", "set", "db", "--read-only", "--writable"], "cannot be used with"),
        (&["hindcast", "volume", "lst"], "list"),
        (
            &["hindcast", "serve", "--data", "d", "--iscsi-digests", "x"],
            "[possible values: offered, refused, required]",
        ),
        (&["hindcast", "target", "add-lun", "t"], "--volume <NAME>"),
        (&["hindcast", "target", "add-lun", "t", "--volume", "a", "--file", "/b"], "cannot be used with"),
        (&["hindcast", "target", "allow", "--initiator", "*"], "--all"),
        (&["hindcast", "target", "allow", "db", "--all"], "cannot be used with"),
        (&["hindcast", "target", "chap", "db"], "--off"),
        (&["hindcast", "target", "chap", "db", "--user", "a"], "--secret-file"),
        (&["hindcast", "target", "set", "db", "--enabled", "--disabled"], "cannot be used with"),
        (
            &["hindcast", "pool", "set", "--placement", "somewhere"],
            "[possible values: anywhere, contiguous, share, snap-aware]",
        ),
        (&["hindcast", "volume", "stats", "--watch", "0"], "0.1 to 86400"),
        (&["hindcast", "volume", "set", "db", "--method", "x"], "[possible values: cow, row]"),
        (&["hindcast", "snapshot", "create"], "VOLUME[@NAME]"),
        (&["hindcast", "snapshot", "create", "db@"], "VOLUME@NAME"),
        (&["hindcast", "snapshot", "create", "db", "--before", "x"], "--after"),
        (&["hindcast", "snapshot", "create", "db", "--after", "x", "--freeze-timeout", "1h"], "1s to 5m"),
        (&["hindcast", "snapshot", "delete", "db"], "db@*"),
        (&["hindcast", "snapshot", "delete", "db@*", "--older-than", "1y"], "7d or 4w"),
        (&["hindcast", "snapshot", "label", "db@a", "x"], "KEY=VALUE"),
        (&["hindcast", "snapshot", "rollback", "db"], "VOLUME@MOMENT"),
        (&["hindcast", "clone", "create", "db", "x"], "VOLUME@MOMENT"),
        (&["hindcast", "rollback", "db"], "VOLUME@MOMENT"),
        (&["hindcast", "rollback", "db@25:00"], "yesterday 10:41"),
        (&["hindcast", "recover", "db", "--to", "10:61", "--as", "x"], "yesterday 10:41"),
        (&["hindcast", "schedule", "create", "a", "db", "--every", "5s"], "10s to 31d"),
        (&["hindcast", "schedule", "set", "a"], "--every"),
        (&["hindcast", "trash", "empty"], "--all"),
        (&["hindcast", "trash", "empty", "db", "--all"], "cannot be used with"),
    ] {
        let message = refused(args);
        assert!(message.contains(part), "{args:?}: {message}");
        assert!(
            !message.contains('\n') && !message.contains("Usage") && !message.starts_with("error"),
            "{message}"
        );
    }
}

#[test]
fn exit_codes_are_those_of_the_help() {
    let refused = |kind| Failure::from(ErrorBody { kind, message: String::new() }).code();
    assert_eq!(refused(ErrorKind::Internal), 1);
    assert_eq!(refused(ErrorKind::Poisoned), 1);
    assert_eq!(refused(ErrorKind::Invalid), 2);
    assert_eq!(refused(ErrorKind::NotFound), 3);
    assert_eq!(refused(ErrorKind::Conflict), 4);
    assert_eq!(refused(ErrorKind::Busy), 4);
    assert_eq!(refused(ErrorKind::NoSpace), 6);
    assert_eq!(Failure::from(ClientError::Unreachable(String::new())).code(), 5);
    assert_eq!(Failure::usage("").code(), 2);
}
