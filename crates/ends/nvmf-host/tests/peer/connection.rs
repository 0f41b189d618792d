//! The controller's side of one connection. It sends and receives PDUs with few checks.

use super::Carries;
use farblock_wire::fabrics::ConnectData;
use farblock_wire::tcp::{
    CapsuleCmd, CapsuleResp, CommonHeader, DataPdu, DigestFlags, IcReq, IcResp, LAST_PDU, PduShape,
    PduType, R2t, SUCCESS, TermReq,
};
use farblock_wire::{Cqe, FromBytes, IntoBytes, Sqe, Status};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;

#[derive(Clone, Debug)]
pub struct Capsule {
    pub sqe: Sqe,
    pub data: Vec<u8>,
}

impl Capsule {
    pub fn cid(&self) -> u16 {
        self.sqe.cid.get()
    }

    pub fn connect_data(&self) -> ConnectData {
        ConnectData::parse(&self.data).expect("Connect data")
    }
}

#[derive(Debug)]
pub enum Pdu {
    Command(Capsule),
    Data(DataPdu, Vec<u8>),
    Terminate(TermReq),
}

pub struct Connection {
    pub stream: TcpStream,
    pub digests: DigestFlags,
    /// Commands that arrived while the target waited for data.
    waiting: VecDeque<Capsule>,
    /// Whether to damage the next data digest.
    pub corrupt_data_digest: bool,
    /// Whether to damage the next header digest.
    pub corrupt_header_digest: bool,
    /// If not 0, the connection sends pieces of this many bytes.
    pub piece_bytes: usize,
    /// If set, the connection sends the next bytes in two parts, the first of this length.
    pub split_at: Option<usize>,
    /// If set, the connection collects bytes here instead of sending them.
    pub hold: Option<Vec<u8>>,
}

impl Connection {
    pub fn new(stream: TcpStream) -> Connection {
        stream.set_nodelay(true).unwrap();
        Connection {
            stream,
            digests: DigestFlags::NONE,
            waiting: VecDeque::new(),
            corrupt_data_digest: false,
            corrupt_header_digest: false,
            piece_bytes: 0,
            split_at: None,
            hold: None,
        }
    }

    fn read(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // The pause is usually long enough that each part arrives separately.
        let pause = || std::thread::sleep(std::time::Duration::from_micros(200));
        if let Some(hold) = &mut self.hold {
            hold.extend_from_slice(bytes);
            return Ok(());
        }
        if let Some(at) = self.split_at.take() {
            let (front, back) = bytes.split_at(at.min(bytes.len()));
            self.stream.write_all(front)?;
            pause();
            return self.stream.write_all(back);
        }
        match self.piece_bytes {
            0 => self.stream.write_all(bytes),
            piece => bytes.chunks(piece).try_for_each(|bytes| {
                self.stream.write_all(bytes)?;
                pause();
                Ok(())
            }),
        }
    }

    /// Reads the ICReq and answers it.
    pub fn initialize(&mut self, granted: DigestFlags, max_h2c_bytes: u32) -> io::Result<IcReq> {
        let request = IcReq::parse(&self.read(IcReq::LEN)?).unwrap();
        assert_eq!(request.ch.pdu_type, PduType::IC_REQ);
        let digests = request.dgst.intersection(granted);
        self.write(IcResp::new(0, digests, max_h2c_bytes).as_bytes())?;
        self.digests = digests;
        Ok(request)
    }

    /// Returns the next PDU, after a check of its digests.
    pub fn pdu(&mut self) -> io::Result<Pdu> {
        let common = self.read(CommonHeader::LEN)?;
        let header = CommonHeader::parse(&common).unwrap();
        let mut bytes = common;
        bytes.extend(self.read(header.plen.get() as usize - CommonHeader::LEN)?);
        let hlen = usize::from(header.hlen);
        if header.has_header_digest() {
            let digest = crc32c::crc32c(&bytes[..hlen]).to_le_bytes();
            assert_eq!(bytes[hlen..hlen + 4], digest, "a wrong header digest");
        }
        let mut data = match header.pdo {
            0 => Vec::new(),
            pdo => bytes[usize::from(pdo)..].to_vec(),
        };
        if header.has_data_digest() {
            let digest = data.split_off(data.len() - 4);
            assert_eq!(digest, crc32c::crc32c(&data).to_le_bytes(), "a wrong data digest");
        }
        Ok(match header.pdu_type {
            PduType::CAPSULE_CMD => {
                let capsule = CapsuleCmd::read_from_bytes(&bytes[..hlen]).unwrap();
                Pdu::Command(Capsule { sqe: capsule.sqe, data })
            }
            PduType::H2C_DATA => Pdu::Data(DataPdu::read_from_bytes(&bytes[..hlen]).unwrap(), data),
            PduType::H2C_TERM_REQ => {
                Pdu::Terminate(TermReq::read_from_bytes(&bytes[..hlen]).unwrap())
            }
            other => panic!("a host sends no {other}"),
        })
    }

    /// Returns the next command. Panics if a data PDU arrives.
    pub fn command(&mut self) -> io::Result<Capsule> {
        if let Some(capsule) = self.waiting.pop_front() {
            return Ok(capsule);
        }
        match self.pdu()? {
            Pdu::Command(capsule) => Ok(capsule),
            Pdu::Data(..) => panic!("data without R2T"),
            Pdu::Terminate(term) => {
                Err(io::Error::other(format!("terminated by the host: {}", term.status())))
            }
        }
    }

    /// Sends a header with its digest, then padding, and data with their digest.
    fn send(&mut self, header: &[u8], shape: PduShape, data: &[u8]) -> io::Result<()> {
        let mut out = header.to_vec();
        if shape.header_digest {
            let damage = u32::from(std::mem::take(&mut self.corrupt_header_digest));
            out.extend((crc32c::crc32c(header) ^ damage).to_le_bytes());
        }
        out.resize(out.len() + shape.pad_bytes(), 0);
        out.extend_from_slice(data);
        if shape.data_digest {
            let damage = u32::from(std::mem::take(&mut self.corrupt_data_digest));
            out.extend((crc32c::crc32c(data) ^ damage).to_le_bytes());
        }
        self.write(&out)
    }

    pub fn respond(&mut self, cid: u16, status: Status, result: u64) -> io::Result<()> {
        let response = CapsuleResp::new(Cqe::new(cid, 0xffff, status, result), self.digests);
        let shape = PduShape::new(24, 0, self.digests, 0).unwrap();
        self.send(response.as_bytes(), shape, &[])
    }

    pub fn succeed(&mut self, cid: u16) -> io::Result<()> {
        self.respond(cid, Status::SUCCESS, 0)
    }

    pub fn push(&mut self, cid: u16, offset: u32, data: &[u8], flags: u8) -> io::Result<()> {
        let shape = PduShape::new(24, data.len() as u32, self.digests, 0).unwrap();
        let pdu = DataPdu::c2h(cid, offset, shape, flags);
        self.send(pdu.as_bytes(), shape, data)
    }

    /// Sends all data of a command in pieces. Reports success by a flag in the last PDU, or by a
    /// response.
    pub fn push_all(
        &mut self,
        cid: u16,
        data: &[u8],
        pdu_bytes: usize,
        success_flag: bool,
    ) -> io::Result<()> {
        let last_flags = if success_flag { LAST_PDU | SUCCESS } else { LAST_PDU };
        for (index, piece) in data.chunks(pdu_bytes).enumerate() {
            let offset = index * pdu_bytes;
            let last = offset + piece.len() == data.len();
            self.push(cid, offset as u32, piece, if last { last_flags } else { 0 })?;
        }
        if success_flag { Ok(()) } else { self.succeed(cid) }
    }

    pub fn r2t(&mut self, cid: u16, tag: u16, offset: u32, length: u32) -> io::Result<()> {
        let pdu = R2t::new(cid, tag, offset, length, self.digests);
        let shape = PduShape::new(24, 0, self.digests, 0).unwrap();
        self.send(pdu.as_bytes(), shape, &[])
    }

    /// Requests a part of a command's data and receives it. Queues the commands that arrive before
    /// the data.
    pub fn pull(&mut self, cid: u16, offset: u32, length: u32) -> io::Result<Vec<u8>> {
        let tag = cid ^ 0x5a5a;
        self.r2t(cid, tag, offset, length)?;
        let mut all = Vec::new();
        loop {
            match self.pdu()? {
                Pdu::Command(capsule) => self.waiting.push_back(capsule),
                Pdu::Data(pdu, data) => {
                    assert_eq!((pdu.cccid.get(), pdu.ttag.get()), (cid, tag));
                    assert_eq!(pdu.datao.get() as usize, offset as usize + all.len());
                    assert_eq!(pdu.datal.get() as usize, data.len());
                    all.extend(data);
                    assert_eq!(pdu.ch.is_last(), all.len() == length as usize, "LAST_PDU");
                    if pdu.ch.is_last() {
                        return Ok(all);
                    }
                }
                Pdu::Terminate(term) => {
                    return Err(io::Error::other(format!("terminated: {}", term.status())));
                }
            }
        }
    }

    /// Closes the connection with a terminate PDU.
    pub fn terminate(&mut self, status: farblock_wire::tcp::FatalErrorStatus) -> io::Result<()> {
        self.write(TermReq::new(PduType::C2H_TERM_REQ, status, 0, 0).as_bytes())
    }
}

impl Carries for Connection {
    fn command(&mut self) -> io::Result<Capsule> {
        Connection::command(self)
    }

    fn respond(&mut self, cid: u16, status: Status, result: u64) -> io::Result<()> {
        Connection::respond(self, cid, status, result)
    }

    fn push_all(
        &mut self,
        cid: u16,
        data: &[u8],
        piece_bytes: usize,
        success_flag: bool,
    ) -> io::Result<()> {
        Connection::push_all(self, cid, data, piece_bytes, success_flag)
    }

    fn pull(&mut self, capsule: &Capsule, offset: u32, length: u32) -> io::Result<Vec<u8>> {
        assert!(capsule.sqe.dptr.is_transport(), "a transport descriptor");
        Connection::pull(self, capsule.cid(), offset, length)
    }
}
