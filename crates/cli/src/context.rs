//! `hindcast context`: servers by names of this person, in the file `contexts`.
//!
//! Each line has the name, the endpoint, and the file with the token, if there is one: `NAME
//! ENDPOINT [FILE]`. The line of the default begins with `* `. A line that begins with `#` is a
//! comment.

use crate::failure::Failure;
use crate::output::{Output, list};
use crate::user_files;
use clap::Subcommand;
use hindcast_api::{Endpoint, ErrorBody, ErrorKind};
use serde::Serialize;
use std::path::{Path, PathBuf};

const FILE: &str = "contexts";
/// Longest name of a context.
const MAX_NAME: usize = 64;
const DEFAULT: &str = "* ";

pub(crate) const EXAMPLES: &str = "\
Examples:
  hindcast context add prod https://storage1:8440 --token-file ~/prod.token
  hindcast --server prod volume list             any command on that server
  hindcast context use prod                      and without --server from now on
  hindcast context use --none                    this machine's server again

The names are yours, in ~/.config/hindcast/contexts. --server and HINDCAST_SOCKET take such a name, \
and come before the default. --token-file and HINDCAST_TOKEN come before the context's token.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Give a server a name; --token-file says which token it gets
    Add {
        /// Name: letters, digits, dots, dashes and underscores
        name: String,
        /// The path of its Unix socket, https://HOST:PORT, or http://HOST:PORT
        endpoint: String,
        /// Use this server where a command names none
        #[arg(long)]
        default: bool,
    },
    /// List the names, with a star at the default
    List,
    /// Make a server the one that commands use where they name none
    Use {
        /// Name of the server
        #[arg(required_unless_present = "none")]
        name: Option<String>,
        /// Have no default
        #[arg(long, conflicts_with = "name")]
        none: bool,
    },
    /// Forget the name of a server
    Remove {
        /// Name of the server
        name: String,
    },
}

/// A server with a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Context {
    name: String,
    pub(crate) endpoint: String,
    pub(crate) token_file: Option<PathBuf>,
    default: bool,
}

pub(crate) fn run(command: Command, token_file: Option<&Path>, output: &Output) -> Result<(), Failure> {
    let path = path()?;
    let mut contexts = read(&path)?;
    match command {
        Command::Add { name, endpoint, default } => {
            let added =
                Context { name, endpoint, token_file: token_file.map(absolute).transpose()?, default };
            let text = format!("{} is {}", added.name, added.endpoint);
            add(&mut contexts, added)?;
            write(&path, &contexts)?;
            output.done(text)
        }
        Command::List => output.show(&contexts, |contexts| table(contexts)),
        Command::Use { name, .. } => {
            let name = name.as_deref();
            if let Some(name) = name {
                find(&contexts, name)?;
            }
            contexts.iter_mut().for_each(|context| context.default = Some(context.name.as_str()) == name);
            write(&path, &contexts)?;
            match name {
                Some(name) => output.done(format_args!("commands use {name} unless --server says otherwise")),
                None => output.done("commands use this machine's server unless --server says otherwise"),
            }
        }
        Command::Remove { name } => {
            find(&contexts, &name)?;
            contexts.retain(|context| context.name != name);
            write(&path, &contexts)?;
            output.done(format_args!("removed {name}"))
        }
    }
}

/// Returns the context that `given` names, or without one the default. `None`: there is none, and
/// `given` is an endpoint. A person without a home directory has none.
pub(crate) fn of(given: Option<&str>) -> Result<Option<Context>, Failure> {
    if given.is_some_and(|text| check_name(text).is_err()) {
        return Ok(None);
    }
    let Ok(path) = path() else { return Ok(None) };
    let contexts = read(&path)?;
    Ok(contexts.into_iter().find(|context| given.map_or(context.default, |name| context.name == name)))
}

fn path() -> Result<PathBuf, Failure> {
    user_files::path(FILE, "no names of servers can be remembered")
}

fn check_name(name: &str) -> Result<(), Failure> {
    let is_fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && name.len() <= MAX_NAME && name.chars().all(is_fit) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{name:?} is no name of a context: it has 1 to {MAX_NAME} letters, digits, dots, dashes and underscores, and begins with a letter or digit"
    )))
}

fn add(contexts: &mut Vec<Context>, added: Context) -> Result<(), Failure> {
    check_name(&added.name)?;
    let endpoint: Endpoint =
        added.endpoint.parse().map_err(|e| Failure::usage(format!("{}: {e}", added.endpoint)))?;
    if added.endpoint.chars().any(char::is_whitespace) {
        return Err(Failure::usage(format!("{:?}: an endpoint has no spaces", added.endpoint)));
    }
    if contexts.iter().any(|context| context.name == added.name) {
        let message = format!("add context {0}: there is one; see `hindcast context remove {0}`", added.name);
        return Err(ErrorBody { kind: ErrorKind::Conflict, message }.into());
    }
    // A path is relative to where the command is given now, not to where it will be.
    let endpoint = match endpoint {
        Endpoint::Unix(path) => {
            let path = absolute(&path)?;
            let text = path.to_str().filter(|path| !path.contains(char::is_whitespace));
            text.ok_or_else(|| Failure::usage("the path of a socket has no spaces here"))?.to_owned()
        }
        other => other.to_string(),
    };
    if added.default {
        contexts.iter_mut().for_each(|context| context.default = false);
    }
    contexts.push(Context { endpoint, ..added });
    contexts.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(())
}

fn find<'a>(contexts: &'a [Context], name: &str) -> Result<&'a Context, Failure> {
    contexts.iter().find(|context| context.name == name).ok_or_else(|| {
        let message = format!("find context {name}: it does not exist; see `hindcast context list`");
        ErrorBody { kind: ErrorKind::NotFound, message }.into()
    })
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))
}

fn read(path: &Path) -> Result<Vec<Context>, Failure> {
    let text = user_files::read(path)?;
    let lines =
        text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let context = |(number, line): (usize, &str)| {
        parse(line).ok_or_else(|| {
            Failure::usage(format!("{}: line {} is not NAME ENDPOINT [FILE]", path.display(), number + 1))
        })
    };
    lines.map(context).collect()
}

fn parse(line: &str) -> Option<Context> {
    let (default, line) = match line.strip_prefix(DEFAULT) {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let (name, rest) = line.trim().split_once(' ')?;
    check_name(name).ok()?;
    let (endpoint, file) = match rest.trim().split_once(' ') {
        Some((endpoint, file)) => (endpoint, Some(PathBuf::from(file.trim()))),
        None => (rest.trim(), None),
    };
    endpoint.parse::<Endpoint>().ok()?;
    Some(Context { name: name.to_owned(), endpoint: endpoint.to_owned(), token_file: file, default })
}

fn write(path: &Path, contexts: &[Context]) -> Result<(), Failure> {
    let mut text = String::new();
    for Context { name, endpoint, token_file, default } in contexts {
        let star = if *default { DEFAULT } else { "" };
        let file = token_file.as_ref().map(|file| format!(" {}", file.display())).unwrap_or_default();
        text.push_str(&format!("{star}{name} {endpoint}{file}\n"));
    }
    user_files::replace(path, &text).map_err(|e| Failure::Failed(format!("write {}: {e}", path.display())))
}

fn table(contexts: &[Context]) -> String {
    let row = |context: &Context| {
        let star = if context.default { "*" } else { "" };
        let file = context.token_file.as_ref().map_or_else(|| "-".into(), |file| file.display().to_string());
        vec![star.to_owned(), context.name.clone(), context.endpoint.clone(), file]
    };
    list(&["", "NAME", "SERVER", "TOKEN FILE"], &[], contexts.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(name: &str, endpoint: &str, file: Option<&str>, default: bool) -> Context {
        let token_file = file.map(PathBuf::from);
        Context { name: name.into(), endpoint: endpoint.into(), token_file, default }
    }

    #[test]
    fn contexts_are_written_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/contexts");
        assert!(read(&path).unwrap().is_empty());
        let mut all = Vec::new();
        add(&mut all, context("prod", "https://h:1/", Some("/a file"), true)).unwrap();
        add(&mut all, context("lab", "unix:/run/s", None, true)).unwrap();
        write(&path, &all).unwrap();
        let expected =
            [context("lab", "/run/s", None, true), context("prod", "https://h:1", Some("/a file"), false)];
        assert_eq!(read(&path).unwrap(), expected);
        std::fs::write(&path, "# mine\n\nlab /run/s\nnothing\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("line 4"));
    }

    #[test]
    fn wrong_contexts_are_refused() {
        let mut all = vec![context("lab", "/run/s", None, false)];
        for (name, endpoint) in
            [("lab", "/s"), ("a/b", "/s"), ("", "/s"), ("-x", "/s"), ("x", "http://h"), ("x", "/a b")]
        {
            add(&mut all, context(name, endpoint, None, false)).unwrap_err();
        }
        assert_eq!(all.len(), 1);
        assert_eq!(find(&all, "x").unwrap_err().code(), 3);
    }
}
