//! `farblock serve --ui`: the dashboard's address and token.

use crate::args::UiArgs;
use crate::error::{Failure, Result, os};
use farblock_admin::{Token, Ui};
use farblock_host::readable::Readable;
use std::fmt::Write as _;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes of a new token, before it is written in hexadecimal.
const TOKEN_BYTES: usize = 16;
/// The read limit of a token file, in bytes.
const FILE_BYTES: u64 = 1024;

/// A dashboard that the options request, and the fragment of its URL.
pub(crate) struct Wanted {
    pub(crate) ui: Ui,
    fragment: String,
}

impl Wanted {
    /// The URL to open, with the port that was bound.
    pub(crate) fn url(fragment: &str, address: SocketAddr, is_secure: bool) -> String {
        let scheme = if is_secure { "https" } else { "http" };
        format!("{scheme}://{}/{fragment}", farblock_command::reachable::reachable(address))
    }

    /// The dashboard and its URL fragment.
    pub(crate) fn split(self) -> (Ui, String) {
        (self.ui, self.fragment)
    }
}

/// The dashboard that the options request.
pub(super) fn wanted(args: &UiArgs, is_secure: bool) -> Result<Option<Wanted>> {
    let Some(address) = args.ui else { return Ok(None) };
    let place = Place { options: ["--ui", "--ui-token"], address, is_secure };
    offered(&place, args.ui_token.as_deref(), args.ui_steer).map(Some)
}

/// The address of a dashboard and its options' names.
pub(crate) struct Place {
    /// The options for the address and the token file, for messages.
    pub(crate) options: [&'static str; 2],
    pub(crate) address: SocketAddr,
    /// Whether the address has a certificate.
    pub(crate) is_secure: bool,
}

/// A dashboard at `place`, with the token from a file or a new one.
pub(crate) fn offered(place: &Place, token: Option<&Path>, may_steer: bool) -> Result<Wanted> {
    let Place { options: [listen, named], address, is_secure } = *place;
    let is_here = address.ip().to_canonical().is_loopback();
    if !is_here && !is_secure {
        return Err(Failure::usage(format_args!(
            "{listen} {address} can be reached from other machines, from where the token would \
             come unencrypted: give it a certificate (--https-cert, --https-key, and {named} \
             FILE), or take {listen} 127.0.0.1:{} and a tunnel (ssh -L)",
            address.port()
        )));
    }
    let (token, fragment) = match token {
        // The owner of the file knows the token: do not print it.
        Some(path) => (from_file(path)?, String::new()),
        None if is_here => made()?,
        None => {
            return Err(Failure::usage(format_args!(
                "{listen} {address} can be reached from other machines, where a token that is \
                 printed here is of no use: keep one in a file and name that by {named} FILE, or \
                 take {listen} 127.0.0.1:{}",
                address.port()
            )));
        }
    };
    Ok(Wanted { ui: Ui { address, token, may_steer }, fragment })
}

fn made() -> Result<(Token, String)> {
    let mut random = [0; TOKEN_BYTES];
    getrandom::fill(&mut random).map_err(|error| {
        Failure::run(format_args!("the system gives no random numbers: {error}"))
    })?;
    let mut text = String::new();
    for byte in random {
        let _ = write!(text, "{byte:02x}");
    }
    let token = Token::new(&text).expect("it is long enough");
    Ok((token, format!("#token={text}")))
}

/// The token in a file that only its owner may read.
pub(crate) fn from_file(path: &Path) -> Result<Token> {
    let shown = path.display();
    let cannot = |error: std::io::Error| {
        Failure::run(format_args!("cannot read the token in {shown}: {}", os(&error)))
    };
    let file = Readable::open(path).map_err(cannot)?;
    let is_open = file.metadata().map_err(cannot)?.mode() & 0o077 != 0;
    if is_open {
        return Err(Failure::run(format_args!(
            "others can read the token in {shown}: chmod 600 it, and if they may have read it, \
             write a new one"
        )));
    }
    let mut text = String::new();
    file.take(FILE_BYTES).read_to_string(&mut text).map_err(cannot)?;
    Token::new(text.trim_end()).map_err(|problem| {
        Failure::run(format_args!(
            "{shown} holds no token: {problem} (openssl rand -hex 16 makes one)"
        ))
    })
}
