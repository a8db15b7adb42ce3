"""test/chaos/proxy.py: TCP links that break in several ways

    python3 proxy.py PORT:TARGET_PORT ...

Reads commands from standard input, one a line; LINK is the number of the argument:

    LINK ok               passes all bytes; held bytes go out late, even if the sender
                          has closed the connection since
    LINK delay MS         delays each direction by MS
    LINK cut              resets all connections, new connections too
    LINK hold             holds all bytes, and resets nothing
    LINK half_in          holds bytes of the node
    LINK half_out         holds bytes of the host
    stalls FILE           from now on, writes to FILE when this process was not run

Ends with standard input.
"""

import asyncio
import sys

from stalls import Stalls


class Link:
    def __init__(self, target):
        self.target = target
        self.delay_s = 0
        self.is_cut = False
        self.passable = {"out": asyncio.Event(), "in": asyncio.Event()}
        self.writers = set()
        self.set("ok")

    def set(self, state, value=0):
        self.delay_s = float(value) / 1000 if state == "delay" else 0
        self.is_cut = state == "cut"
        for direction, stops in ("out", ("hold", "half_out")), ("in", ("hold", "half_in")):
            if state in stops:
                self.passable[direction].clear()
            else:
                self.passable[direction].set()
        if self.is_cut:
            for writer in list(self.writers):
                writer.transport.abort()

    async def accept(self, reader, writer):
        if self.is_cut:
            writer.transport.abort()
            return
        try:
            node_reader, node_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self.writers |= {writer, node_writer}
        await asyncio.gather(self.pump(reader, node_writer, "out"), self.pump(node_reader, writer, "in"))
        self.writers -= {writer, node_writer}

    async def pump(self, reader, writer, direction):
        queue = asyncio.Queue()
        sending = asyncio.ensure_future(self.send(queue, writer, direction))
        loop = asyncio.get_running_loop()
        while True:
            try:
                data = await reader.read(65536)
            except OSError:
                data = b""
            queue.put_nowait((loop.time() + self.delay_s, data))
            if not data:
                break
        await sending

    async def send(self, queue, writer, direction):
        loop = asyncio.get_running_loop()
        while True:
            due, data = await queue.get()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            await self.passable[direction].wait()
            if not data:
                break
            try:
                writer.write(data)
                await writer.drain()
            except OSError:
                break
        writer.close()


async def watch(stalls):
    while True:
        await asyncio.sleep(stalls.PAUSE_S)
        stalls.look()


async def main(pairs):
    loop = asyncio.get_running_loop()
    stalls = Stalls()
    watching = asyncio.ensure_future(watch(stalls))
    links = []
    for pair in pairs:
        port, target = map(int, pair.split(":"))
        links.append(Link(target))
        await asyncio.start_server(links[-1].accept, "127.0.0.1", port)
    loop.set_exception_handler(lambda *_: None)  # the proxy breaks connections on purpose
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    print("ready", flush=True)
    while line := (await commands.readline()).decode().split():
        if line[0] == "stalls":
            stalls.write_to(line[1])
        else:
            links[int(line[0])].set(*line[1:])
    watching.cancel()


asyncio.run(main(sys.argv[1:]))
