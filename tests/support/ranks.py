"""Two programs that talk to each other over an address of their machine.

As NCCL's ranks do: each listens on the address of an interface, connects to the other
there, and shares a fixed port on loopback with it (SO_REUSEPORT).
"""

#: Two ranks: numbers go round, each of them once, in order, over both connections.
PROGRAM = """
import os, socket, sys, time
family, address, loop = socket.{family}, "{address}", "{loop}"

def say(*words):
    # In one piece: both write into one pipe.
    os.write(1, (" ".join(map(str, ("rank", rank, *words))) + "\\n").encode())

def listen(where, port=0, shared=False):
    made = socket.socket(family)
    if shared:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind((where, port))
    made.listen(16)
    return made

def connect(to):
    made = socket.socket(family)
    made.connect(to)
    return made

listener = listen(address)
up, down = os.pipe(), os.pipe()
rank = 0 if os.fork() else 1
if rank:
    listener.close()
    listener = listen(address)
    os.write(up[1], str(listener.getsockname()[1]).encode())
    to = int(os.read(down[0], 99))
else:
    os.write(down[1], str(listener.getsockname()[1]).encode())
    to = int(os.read(up[0], 99))
ras = listen(loop, 28028, shared=True)
time.sleep(0.2)
asking = connect((loop, 28028))  # one of both answers
ras.setblocking(False)
asked = []
def gossip():
    try:
        while True:
            asked.append(ras.accept()[0])
            asked[-1].setblocking(False)
    except BlockingIOError:
        pass
    for one in asked:
        try:
            if not one.recv(99):
                say("lost its friend")
        except BlockingIOError:
            pass
    asking.sendall(b"x")
out = connect((address, to))
into = listener.accept()[0]
say("up")
count = 0
if rank == 0:
    # Always a whole window of them is on its way: nothing may be lost or doubled.
    for number in range(1000):
        out.sendall(number.to_bytes(4, "big"))
while True:
    data = into.recv(4, socket.MSG_WAITALL)
    if len(data) < 4:
        say("lost its peer")
        break
    number = int.from_bytes(data, "big")
    if number != count:
        say("got", number, "in place of", count)
        break
    out.sendall((count + (0 if rank else 1000)).to_bytes(4, "big"))
    count += 1
    if count % 1000 == 0:
        gossip()
        say("at", count, out.getsockname()[0])
        time.sleep(0.01)
time.sleep(1000)
"""
