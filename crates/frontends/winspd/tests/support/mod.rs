//! A client for WinSpd's named pipe, written from the documentation in `winspd/ioctl.h` without
//! code of the crate. The client receives 128 bytes of parameters, and then exchanges requests and
//! answers of 48 bytes each, followed by data.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this module")]

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::windows::io::AsRawHandle;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use windows_sys::Win32::System::Pipes::{PIPE_READMODE_MESSAGE, SetNamedPipeHandleState};

pub const READ: u8 = 1;
pub const WRITE: u8 = 2;
pub const FLUSH: u8 = 3;
pub const UNMAP: u8 = 4;
/// A kind of request that only the stand-in for WinSpd's library has. It removes the disk.
pub const TAKE_AWAY: u8 = 0xee;

/// A library to test with. Failure messages contain its name.
#[derive(Clone, Debug)]
pub struct Library {
    pub name: &'static str,
    pub folder: PathBuf,
}

/// The libraries to test with: the stand-in, and WinSpd's own library if `FARBLOCK_WINSPD` names a
/// folder with a build of it.
pub fn libraries() -> Vec<Library> {
    let mut all = vec![Library { name: "stand-in", folder: stand_in() }];
    match std::env::var_os("FARBLOCK_WINSPD") {
        Some(folder) => all.push(Library { name: "WinSpd", folder: folder.into() }),
        None => eprintln!(
            "WinSpd's own library is not tested: name a folder with winspd-x64.dll and stgtest.exe \
             in FARBLOCK_WINSPD"
        ),
    }
    all
}

/// Copies the stand-in to a folder of this test program, with the file name of WinSpd's library.
fn stand_in() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let program = std::env::current_exe().expect("a path");
        let built = program.parent().and_then(Path::parent).expect("a folder two levels above");
        let built = built.join("examples").join("winspd_standin.dll");
        let folder = program.with_extension("winspd");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::copy(&built, folder.join("winspd-x64.dll")).unwrap_or_else(|error| {
            let built = built.display();
            panic!("{built}: {error}: build it with 'cargo build --example winspd_standin'")
        });
        folder
    };
    FOLDER.get_or_init(make).clone()
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    pub hint: u64,
    pub kind: u8,
    pub scsi_status: u8,
    /// The sense key, the additional sense code, and its qualifier.
    pub sense: (u8, u8, u8),
    pub information: Option<u64>,
    pub data: Vec<u8>,
}

impl Answer {
    pub fn is_good(&self) -> bool {
        self.scsi_status == 0
    }
}

pub struct Client {
    pipe: File,
    pub params: Vec<u8>,
    pub next_hint: u64,
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl Client {
    pub fn connect(name: &str) -> Client {
        let deadline = Instant::now() + Duration::from_secs(60);
        let pipe = loop {
            match OpenOptions::new().read(true).write(true).open(name) {
                Ok(pipe) => break pipe,
                // The server may not have noticed yet that the previous client has disconnected, so
                // retry.
                Err(error) if Instant::now() > deadline => panic!("{name}: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        // SAFETY: the handle is open, and `mode` is a number.
        let result = unsafe {
            let mode = PIPE_READMODE_MESSAGE;
            let null = std::ptr::null();
            SetNamedPipeHandleState(pipe.as_raw_handle(), &mode, null, null)
        };
        assert_ne!(result, 0, "the pipe refused message mode: {}", std::io::Error::last_os_error());
        let mut client = Client { pipe, params: vec![0; 256], next_hint: 1 };
        let length = client.pipe.read(&mut client.params).expect("parameters");
        client.params.truncate(length);
        assert_eq!(length, 128, "the parameters have the documented length");
        client
    }

    pub fn blocks(&self) -> u64 {
        long(&self.params, 16)
    }

    pub fn block_bytes(&self) -> usize {
        number(&self.params, 24) as usize
    }

    pub fn product(&self) -> String {
        String::from_utf8_lossy(&self.params[28..44]).into_owned()
    }

    /// The disk's flags, as in WinSpd's parameters: write-protected, with a cache, with unmap, not
    /// ejectable.
    pub fn flags(&self) -> u32 {
        number(&self.params, 52)
    }

    pub fn max_bytes(&self) -> usize {
        number(&self.params, 56) as usize
    }

    /// Sends a request. Returns the request's hint (identifier).
    pub fn send(&mut self, kind: u8, lba: u64, blocks: u32, fua: bool, data: &[u8]) -> u64 {
        let hint = self.next_hint;
        self.next_hint += 1;
        let mut message = vec![0; 48];
        message[..8].copy_from_slice(&hint.to_le_bytes());
        message[8] = kind;
        message[16..24].copy_from_slice(&lba.to_le_bytes());
        message[24..28].copy_from_slice(&blocks.to_le_bytes());
        message[28] = u8::from(fua);
        message.extend_from_slice(data);
        assert_eq!(self.pipe.write(&message).expect("the bytes are sent"), message.len());
        hint
    }

    pub fn send_unmap(&mut self, ranges: &[(u64, u32)]) -> u64 {
        let mut data = Vec::new();
        for (lba, blocks) in ranges {
            data.extend_from_slice(&lba.to_le_bytes());
            data.extend_from_slice(&blocks.to_le_bytes());
            data.extend_from_slice(&[0; 4]);
        }
        // In an unmap request, this field contains the number of ranges. In other requests it is
        // the address.
        self.send(UNMAP, ranges.len() as u64, 0, false, &data)
    }

    /// Receives the next answer. Returns `None` if the server has closed the pipe.
    pub fn receive(&mut self) -> Option<Answer> {
        let mut message = vec![0; 48 + self.max_bytes()];
        let length = match self.pipe.read(&mut message) {
            Ok(0) => return None,
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return None,
            // 233 is ERROR_PIPE_NOT_CONNECTED.
            Err(error) if error.raw_os_error() == Some(233) => return None,
            Err(error) => panic!("no answer: {error}"),
        };
        assert!(length >= 48, "the server sent an answer of only {length} bytes");
        let is_valid = number(&message, 44) & 1 << 8 != 0;
        Some(Answer {
            hint: long(&message, 0),
            kind: message[8],
            scsi_status: message[16],
            sense: (message[17], message[18], message[19]),
            information: is_valid.then(|| long(&message, 24)),
            data: message[48..length].to_vec(),
        })
    }

    /// Receives the answer to this request, which must be the next answer.
    pub fn answer(&mut self, hint: u64, kind: u8) -> Answer {
        let answer = self.receive().expect("an answer");
        assert_eq!((answer.hint, answer.kind), (hint, kind));
        answer
    }

    pub fn read(&mut self, lba: u64, blocks: u32) -> Answer {
        let hint = self.send(READ, lba, blocks, false, &[]);
        self.answer(hint, READ)
    }

    pub fn write(&mut self, lba: u64, data: &[u8], fua: bool) -> Answer {
        let blocks = (data.len() / self.block_bytes()) as u32;
        let hint = self.send(WRITE, lba, blocks, fua, data);
        self.answer(hint, WRITE)
    }

    pub fn flush(&mut self, lba: u64, blocks: u32) -> Answer {
        let hint = self.send(FLUSH, lba, blocks, false, &[]);
        self.answer(hint, FLUSH)
    }

    pub fn unmap(&mut self, ranges: &[(u64, u32)]) -> Answer {
        let hint = self.send_unmap(ranges);
        self.answer(hint, UNMAP)
    }
}
