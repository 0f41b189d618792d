//! The address and the token of the dashboard, for `farblock serve --ui` and other commands.

use crate::args::UiArgs;
use crate::error::{Failure, Result, os};
use farblock_admin::{Token, Ui};
use farblock_host::readable::Readable;
use std::fmt::Write as _;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The length of a new token in bytes, before hexadecimal encoding.
const TOKEN_BYTES: usize = 16;
/// The maximum number of bytes to read from a token file.
const FILE_BYTES: u64 = 1024;

/// A dashboard that the options request, and the fragment of its URL, which contains the token.
pub struct Wanted {
    /// The dashboard to serve.
    pub ui: Ui,
    fragment: String,
}

impl Wanted {
    /// Returns the URL to open, with the port that the server bound.
    pub fn url(fragment: &str, address: SocketAddr, is_secure: bool) -> String {
        let scheme = if is_secure { "https" } else { "http" };
        format!("{scheme}://{}/{fragment}", farblock_program::reachable::reachable(address))
    }

    /// Returns the dashboard and its URL fragment.
    pub fn split(self) -> (Ui, String) {
        (self.ui, self.fragment)
    }
}

/// Returns the dashboard that the options of `serve` request.
pub(super) fn wanted(args: &UiArgs, is_secure: bool) -> Result<Option<Wanted>> {
    let Some(address) = args.ui else { return Ok(None) };
    let place = Place { options: ["--ui", "--ui-token"], address, is_secure };
    offered(&place, args.ui_token.as_deref(), args.ui_steer).map(Some)
}

/// The address of a dashboard, and the names of its options.
pub struct Place {
    /// The options for the address and for the token file, for error messages.
    pub options: [&'static str; 2],
    /// The address to listen on.
    pub address: SocketAddr,
    /// Whether the dashboard uses HTTPS.
    pub is_secure: bool,
}

/// Returns a dashboard at `place`, with a token from a file or a new token.
pub fn offered(place: &Place, token: Option<&Path>, may_steer: bool) -> Result<Wanted> {
    let Place { options: [listen, named], address, is_secure } = *place;
    let is_here = address.ip().to_canonical().is_loopback();
    if !is_here && !is_secure {
        return Err(Failure::usage(format_args!(
            "{listen} {address} accepts connections from other machines, whose token would cross \
             the network unencrypted: use a certificate (--https-cert, --https-key, and {named} \
             FILE), or {listen} 127.0.0.1:{} and a tunnel (ssh -L)",
            address.port()
        )));
    }
    let (token, fragment) = match token {
        // Do not print this token: the owner of the file knows it.
        Some(path) => (from_file(path)?, String::new()),
        None if is_here => made()?,
        None => {
            return Err(Failure::usage(format_args!(
                "{listen} {address} accepts connections from other machines, where a token \
                 printed here is of no use: store a token in a file and name it with {named} FILE, \
                 or use {listen} 127.0.0.1:{}",
                address.port()
            )));
        }
    };
    Ok(Wanted { ui: Ui { address, token, may_steer }, fragment })
}

fn made() -> Result<(Token, String)> {
    let mut random = [0; TOKEN_BYTES];
    getrandom::fill(&mut random).map_err(|error| {
        Failure::run(format_args!("cannot get random numbers from the system: {error}"))
    })?;
    let mut text = String::new();
    for byte in random {
        let _ = write!(text, "{byte:02x}");
    }
    let token = Token::new(&text).expect("a new token is long enough");
    Ok((token, format!("#token={text}")))
}

/// Reads the token from a file. Fails if users other than its owner may read the file.
pub fn from_file(path: &Path) -> Result<Token> {
    let shown = path.display();
    let cannot = |error: std::io::Error| {
        Failure::run(format_args!("cannot read the token in {shown}: {}", os(&error)))
    };
    let file = Readable::open(path).map_err(cannot)?;
    let is_open = file.metadata().map_err(cannot)?.mode() & 0o077 != 0;
    if is_open {
        return Err(Failure::run(format_args!(
            "other users can read the token in {shown}: run chmod 600 on it, and replace the \
             token if it may have leaked"
        )));
    }
    let mut text = String::new();
    file.take(FILE_BYTES).read_to_string(&mut text).map_err(cannot)?;
    Token::new(text.trim_end()).map_err(|problem| {
        Failure::run(format_args!(
            "{shown} has no valid token: {problem} (openssl rand -hex 16 makes one)"
        ))
    })
}
