// SPDX-License-Identifier: Apache-2.0
// Encrypted connections, over a pair of sockets: what is on the wire, and what
// becomes of it when somebody changes that.
#include <errno.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "dist/backends/tcp/tcp_seal_internal.h"

namespace {

using Bytes = std::vector<unsigned char>;

// Two sides that have met, and a wire between them that is in our hands: what
// one sends lies in `wire` until it is delivered.
class SealTest : public testing::Test {
 protected:
  void SetUp() override {
    choir_tcp_keys_t keys[2];
    for (int side = 0; side < 2; ++side) {
      ASSERT_EQ(
          socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets_[side]),
          0);
      ASSERT_EQ(choir_tcp_make_keys(&keys[side]), nullptr);
    }
    for (int side = 0; side < 2; ++side)
      ASSERT_EQ(
          choir_tcp_seal_open(choir_allocator_default(), &keys[side],
                              keys[1 - side].shown, side == 0, &seals_[side]),
          nullptr);
  }
  void TearDown() override {
    for (int side = 0; side < 2; ++side) {
      choir_tcp_seal_close(choir_allocator_default(), &seals_[side]);
      EXPECT_EQ(seals_[side], nullptr);
      for (int end : sockets_[side]) close(end);
    }
  }

  // Of `data` in two parts as much as goes now.
  ssize_t Send(int side, const Bytes& data, size_t done = 0, size_t cut = 0) {
    unsigned char* all = const_cast<unsigned char*>(data.data());
    cut = std::max(cut, done);
    iovec parts[2] = {{all + done, cut - done}, {all + cut, data.size() - cut}};
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    return choir_tcp_send(sockets_[side][0], seals_[side], &message);
  }
  // What a side has sent, taken from the wire.
  Bytes Wire(int side) {
    Bytes all;
    unsigned char some[4096];
    ssize_t n;
    while ((n = recv(sockets_[side][1], some, sizeof some, 0)) > 0)
      all.insert(all.end(), some, some + n);
    return all;
  }
  void Deliver(int side, const Bytes& wire) {
    ASSERT_EQ(send(sockets_[side][1], wire.data(), wire.size(), 0),
              static_cast<ssize_t>(wire.size()));
  }
  ssize_t Receive(int side, Bytes* data, size_t at = 0) {
    iovec part = {data->data() + at, data->size() - at};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    return choir_tcp_receive(sockets_[side][0], seals_[side], &message);
  }
  void ExpectForged(int side) {
    Bytes data(64);
    EXPECT_EQ(Receive(side, &data), -1);
    EXPECT_EQ(errno, EBADMSG);
  }

  int sockets_[2][2] = {{-1, -1}, {-1, -1}};
  choir_tcp_seal_t* seals_[2] = {nullptr, nullptr};
};

Bytes Text(size_t bytes, unsigned seed) {
  Bytes data(bytes);
  std::mt19937 random(seed);
  for (unsigned char& byte : data) byte = static_cast<unsigned char>(random());
  return data;
}

TEST_F(SealTest, BothWays) {
  const size_t sizes[] = {1, 4, 63, 1000, 16383, 16384, 16385, 50000};
  for (size_t bytes : sizes) {
    for (int side = 0; side < 2; ++side) {
      const Bytes sent = Text(bytes, static_cast<unsigned>(bytes) + side);
      Bytes came(bytes);
      size_t in = 0;
      for (size_t out = 0; out < bytes || in < bytes;) {
        if (out < bytes) {
          const ssize_t n = Send(side, sent, out, bytes / 3);
          if (n > 0) out += static_cast<size_t>(n);
        }
        // In pieces, as a wire delivers them.
        const Bytes wire = Wire(side);
        for (size_t at = 0; at < wire.size(); at += 777) {
          const size_t end = std::min(wire.size(), at + 777);
          Deliver(1 - side, Bytes(wire.begin() + static_cast<long>(at),
                                  wire.begin() + static_cast<long>(end)));
          ssize_t n;
          while (in < bytes && (n = Receive(1 - side, &came, in)) > 0)
            in += static_cast<size_t>(n);
        }
      }
      EXPECT_EQ(came, sent) << bytes;
    }
  }
}

TEST_F(SealTest, AFullWireTakesNothingTwice) {
  const Bytes sent = Text(3000000, 7);
  Bytes came(sent.size());
  size_t out = 0;
  size_t in = 0;
  bool was_full = false;
  while (in < sent.size()) {
    ssize_t n = 0;
    while (out < sent.size() && (n = Send(0, sent, out)) > 0)
      out += static_cast<size_t>(n);
    if (n < 0) {
      EXPECT_EQ(errno, EAGAIN);
      EXPECT_TRUE(choir_tcp_is_sending(seals_[0]));
      was_full = true;
    }
    Deliver(1, Wire(0));
    while (in < sent.size() && (n = Receive(1, &came, in)) > 0)
      in += static_cast<size_t>(n);
  }
  EXPECT_TRUE(was_full);
  EXPECT_EQ(came, sent);
}

TEST_F(SealTest, NothingOfItCanBeReadOnTheWire) {
  const std::string secret = "the gradient of conv1.W";
  const Bytes sent(secret.begin(), secret.end());
  Bytes before;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(Send(0, sent), static_cast<ssize_t>(sent.size()));
    const Bytes wire = Wire(0);
    EXPECT_EQ(wire.size(), 4 + sent.size() + 16);
    EXPECT_EQ(
        std::search(wire.begin(), wire.end(), sent.begin(), sent.begin() + 6),
        wire.end());
    // The same text looks like another one each time.
    EXPECT_NE(wire, before);
    before = wire;
  }
}

TEST_F(SealTest, AChangedBitIsSeen) {
  const Bytes sent = Text(40, 1);
  ASSERT_EQ(Send(0, sent), 40);
  const Bytes wire = Wire(0);
  // In the data, and in the code. A length that is changed waits for more, or
  // is none.
  const size_t places[] = {4, 20, wire.size() - 1};
  for (size_t place : places) {
    TearDown();
    SetUp();
    ASSERT_EQ(Send(0, sent), 40);
    Bytes changed = Wire(0);
    changed[place] ^= 1;
    Deliver(1, changed);
    ExpectForged(1);
  }
}

TEST_F(SealTest, AWrongLengthIsSeen) {
  ASSERT_EQ(Send(0, Text(40, 1)), 40);
  Bytes wire = Wire(0);
  Bytes shorter = wire;
  --shorter[0];
  Deliver(1, shorter);
  ExpectForged(1);
  for (const Bytes& length :
       {Bytes{0, 0, 0, 0}, Bytes{1, 64, 0, 0}, Bytes{255, 255, 255, 255}}) {
    TearDown();
    SetUp();
    Deliver(1, length);
    ExpectForged(1);
  }
}

TEST_F(SealTest, ARecordThatIsLeftOutOrSentAgainIsSeen) {
  ASSERT_EQ(Send(0, Text(40, 1)), 40);
  const Bytes first = Wire(0);
  ASSERT_EQ(Send(0, Text(40, 2)), 40);
  const Bytes second = Wire(0);
  Bytes data(40);
  Deliver(1, first);
  ASSERT_EQ(Receive(1, &data), 40);
  Deliver(1, first);
  ExpectForged(1);
  TearDown();
  SetUp();
  ASSERT_EQ(Send(0, Text(40, 1)), 40);
  (void)Wire(0);
  ASSERT_EQ(Send(0, Text(40, 2)), 40);
  Deliver(1, Wire(0));
  ExpectForged(1);
}

TEST_F(SealTest, WhatOneSideSentIsNotTakenBackByIt) {
  ASSERT_EQ(Send(0, Text(40, 1)), 40);
  Deliver(0, Wire(0));
  ExpectForged(0);
}

TEST_F(SealTest, AnEndWithinARecordIsAnEnd) {
  ASSERT_EQ(Send(0, Text(40, 1)), 40);
  Bytes wire = Wire(0);
  wire.pop_back();
  Deliver(1, wire);
  Bytes data(40);
  EXPECT_EQ(Receive(1, &data), -1);
  EXPECT_EQ(errno, EAGAIN);
  shutdown(sockets_[1][1], SHUT_WR);
  EXPECT_EQ(Receive(1, &data), 0);
}

TEST(SealKeysTest, AKeyOfSmallOrderIsRefused) {
  choir_tcp_keys_t keys;
  ASSERT_EQ(choir_tcp_make_keys(&keys), nullptr);
  const unsigned char none[CHOIR_TCP_KEY_BYTES] = {0};
  choir_tcp_seal_t* seal = nullptr;
  choir_status_t status =
      choir_tcp_seal_open(choir_allocator_default(), &keys, none, true, &seal);
  ASSERT_NE(status, nullptr);
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_UNAVAILABLE);
  EXPECT_EQ(seal, nullptr);
  choir_status_free(status);
}

}  // namespace
