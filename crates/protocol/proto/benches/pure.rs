//! Measures the protocol without sockets and disks: the framer, both ends of a connection with the
//! parsing of commands, and digests.
//!
//! `cargo bench -p farblock-proto` runs the benchmarks. CI runs each benchmark once (`-- --test`)
//! and ignores the times.

#![allow(missing_docs, reason = "criterion makes the functions")]

#[path = "../tests/controller_fixture/mod.rs"]
mod controller_fixture;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use farblock_proto::capsule::RemoteForm;
use farblock_proto::controller::{IoCommand, NamespaceTable};
use farblock_proto::tcp::controller_end::{self, ControllerEnd, Event as FromHost, PushPart};
use farblock_proto::tcp::digest::crc32c;
use farblock_proto::tcp::framer::{Framed, Framer, Role};
use farblock_proto::tcp::host_end::{Event as FromController, HostEnd, Transfer};
use farblock_proto::tcp::{Digests, SlotId};
use farblock_wire::Cqe;
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::sgl::SglDescriptor;
use farblock_wire::sqe::Sqe;
use std::hint::black_box;

/// The number of commands in one batch.
const DEPTH: u16 = 32;
const BLOCK_BYTES: u32 = 4096;

fn read_command(slot: u16) -> Sqe {
    let mut sqe = Sqe::new(NvmOpcode::READ.0, slot, 1);
    sqe.cdw10 = (u32::from(slot) * 8).into();
    sqe.cdw12 = (BLOCK_BYTES / 512 - 1).into();
    sqe.dptr = SglDescriptor::transport(BLOCK_BYTES);
    sqe
}

/// Returns both ends of a connection, after the exchange of ICReq and ICResp.
fn connected(digests: Digests) -> (HostEnd, ControllerEnd) {
    let mut host = HostEnd::new(digests, DEPTH);
    let mut controller = ControllerEnd::new(controller_end::Config::default());
    controller.set_depth(DEPTH);
    controller.set_success_flag(true);
    let (mut to_controller, mut to_host) = (Vec::new(), Vec::new());
    host.start(&mut to_controller);
    let mut input = &to_controller[..];
    while controller.next(&mut input, &mut to_host).expect("an honest host").is_some() {}
    let mut input = &to_host[..];
    while host.next(&mut input).expect("an honest controller").is_some() {}
    (host, controller)
}

/// Appends the capsules of [`DEPTH`] read commands to `out`.
fn submit(host: &mut HostEnd, out: &mut Vec<u8>) {
    for slot in 0..DEPTH {
        let transfer = Transfer::FromController(BLOCK_BYTES);
        host.submit(SlotId(slot), &read_command(slot), transfer, out);
    }
}

/// Parses commands and emits the headers of their responses. The data comes from a buffer of
/// zeroes.
fn answer(
    controller: &mut ControllerEnd,
    table: &NamespaceTable,
    mut input: &[u8],
    data: &[u8],
    out: &mut Vec<u8>,
) {
    while let Some(event) = controller.next(&mut input, out).expect("an honest host") {
        let FromHost::Command { slot, sqe } = event else { panic!("reads only") };
        black_box(IoCommand::parse(&sqe, table, RemoteForm::Transport).expect("a good command"));
        let ended = controller.push_header(slot, 0, BLOCK_BYTES, PushPart::Final, out);
        out.extend_from_slice(data);
        out.extend(controller.data_digest(data).into_iter().flatten());
        if !ended {
            controller.respond(slot, &Cqe::success(0, 0), out);
        }
    }
}

/// Parses responses and their data on the host's side. Returns the number of commands that they
/// complete.
fn complete(host: &mut HostEnd, mut input: &[u8]) -> u16 {
    let mut completed = 0;
    while let Some(event) = host.next(&mut input).expect("an honest controller") {
        completed += u16::from(matches!(event, FromController::Completed { intact: true, .. }));
    }
    completed
}

fn framer(c: &mut Criterion) {
    let mut group = c.benchmark_group("framer");
    group.throughput(Throughput::Elements(u64::from(DEPTH)));
    for (name, digests) in [("plain", Digests::NONE), ("digests", Digests::BOTH)] {
        let (mut host, _) = connected(digests);
        let mut bytes = Vec::new();
        submit(&mut host, &mut bytes);
        let mut framer = Framer::new(Role::Controller, 8192);
        framer.set_operational(digests);
        group.bench_function(format!("32 read capsules, {name}"), |b| {
            b.iter(|| {
                let (mut input, mut found) = (black_box(&bytes[..]), 0);
                while let Some(framed) = framer.next(&mut input).expect("good bytes") {
                    found += u16::from(matches!(framed, Framed::Pdu(_)));
                }
                assert_eq!(found, DEPTH);
            });
        });
    }
    group.finish();
}

fn controller(c: &mut Criterion) {
    let mut group = c.benchmark_group("ends");
    group.throughput(Throughput::Elements(u64::from(DEPTH)));
    let table = NamespaceTable::new(1, 128 << 10, controller_fixture::config().namespaces);
    let data = vec![0; BLOCK_BYTES as usize];
    for (name, digests) in [("plain", Digests::NONE), ("digests", Digests::BOTH)] {
        group.bench_function(format!("32 reads of 4k there and back, {name}"), |b| {
            let (mut host, mut controller) = connected(digests);
            let (mut asked, mut answered) = (Vec::new(), Vec::new());
            b.iter(|| {
                asked.clear();
                answered.clear();
                submit(&mut host, &mut asked);
                answer(&mut controller, &table, &asked, &data, &mut answered);
                assert_eq!(complete(&mut host, &answered), DEPTH);
            });
        });
    }
    let command = read_command(3);
    group.throughput(Throughput::Elements(1));
    group.bench_function("parse a read command", |b| {
        b.iter_batched(
            || command,
            |command| IoCommand::parse(black_box(&command), &table, RemoteForm::Transport).is_ok(),
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

fn digests(c: &mut Criterion) {
    let mut group = c.benchmark_group("crc32c");
    for size in [72, 4096, 1 << 20] {
        let bytes = vec![0x5a; size];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(format!("{size} bytes"), |b| b.iter(|| crc32c(black_box(&bytes))));
    }
    group.finish();
}

criterion_group!(pure, framer, controller, digests);
criterion_main!(pure);
