// The kernels on a processor, one thread after the other. As a library it is called by the tests; as a
// program it moves bytes between allocations of the exact size, for the sanitizers to watch.
#include "shim.h"
#include KERNELS

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

enum Order { FORWARD, GRID_REVERSED, THREADS_REVERSED, REVERSED };

// Answers how many words were stored.
extern "C" u64 launch(unsigned int width, unsigned int grid, unsigned int order, const u64 *a) {
    auto *const kernel = width == 16  ? blockyard_move16
                         : width == 8 ? blockyard_move8
                         : width == 4 ? blockyard_move4
                                      : blockyard_move1;
    gridDim.x = grid;
    stored = 0;
    for (unsigned int i = 0; i < grid; ++i) {
        for (unsigned int j = 0; j < THREADS; ++j) {
            blockIdx.x = order & GRID_REVERSED ? grid - 1 - i : i;
            threadIdx.x = order & THREADS_REVERSED ? THREADS - 1 - j : j;
            kernel(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]);
        }
    }
    return stored;
}

// A byte more than its length would be noticed, and so would a base aligned to less than the width.
template <typename T> static T *exactly(u64 count) {
    return static_cast<T *>(std::malloc(count * sizeof(T)));
}

// One plane: an allocation per piece, the slots in it side by side, in an order of their own.
struct Side {
    u64 blocks, pieces, bytes, stride;
    u64 *table;
    unsigned int *slots;

    Side(u64 blocks, u64 pieces, u64 bytes, u64 gap, u64 turn, unsigned int seed)
        : blocks(blocks), pieces(pieces), bytes(bytes), stride(bytes + gap),
          table(exactly<u64>(pieces)), slots(turn ? exactly<unsigned int>(blocks) : nullptr) {
        for (u64 piece = 0; piece < pieces; ++piece) {
            const u64 size = blocks ? (blocks - 1) * stride + bytes : 0;
            auto *const memory = exactly<unsigned char>(size);
            for (u64 i = 0; i < size; ++i) {
                seed = seed * 1664525u + 1013904223u;
                memory[i] = static_cast<unsigned char>(seed >> 24);
            }
            table[piece] = reinterpret_cast<u64>(memory);
        }
        for (u64 block = 0; slots && block < blocks; ++block) {
            slots[block] = static_cast<unsigned int>((block * turn + turn / 2) % blocks);
        }
    }
    ~Side() {
        for (u64 piece = 0; piece < pieces; ++piece) std::free(start(piece));
        std::free(slots);
        std::free(table);
    }
    unsigned char *start(u64 piece) const { return reinterpret_cast<unsigned char *>(table[piece]); }
    unsigned char *at(u64 piece, u64 block) const {
        return start(piece) + (slots ? slots[block] : block) * stride;
    }
    u64 address(const void *of) const { return reinterpret_cast<u64>(of); }
};

static bool moves(unsigned int width, u64 words, u64 pieces, u64 blocks, u64 from_turn, u64 to_turn) {
    bool good = true;
    for (const unsigned int order : {FORWARD, GRID_REVERSED, THREADS_REVERSED, REVERSED}) {
        const u64 bytes = words * width;
        const Side from(blocks, pieces, bytes, width, from_turn, 1);
        const Side to(blocks, pieces, bytes, 3 * width, to_turn, 2);
        const Side wanted(blocks, pieces, bytes, 3 * width, to_turn, 2);
        const u64 a[] = {from.address(from.table), from.stride, from.address(from.slots),
                         to.address(to.table),     to.stride,   to.address(to.slots),
                         blocks,                   pieces,      bytes};
        good = launch(width, 1 + 2 * (order & 1), order, a) == words * pieces * blocks && good;
        for (u64 piece = 0; piece < pieces; ++piece) {
            for (u64 block = 0; block < blocks; ++block) {
                std::memcpy(wanted.at(piece, block), from.at(piece, block), bytes);
            }
            const u64 size = blocks ? (blocks - 1) * to.stride + bytes : 0;
            good = good && std::memcmp(to.start(piece), wanted.start(piece), size) == 0;
        }
    }
    if (!good) {
        std::printf("width %u, words %llu, pieces %llu, blocks %llu\n", width, words, pieces, blocks);
    }
    return good;
}

int main() {
    const u64 lengths[] = {1, 2, 3, 7, 31, 32, 33, 127, 128, 129, 300};
    // Pieces, blocks, and steps from slot to slot, without a common divisor with the blocks.
    const u64 shapes[][4] = {{1, 0, 1, 0}, {1, 1, 0, 0}, {3, 7, 0, 3}, {5, 4, 3, 0}, {2, 41, 5, 12}};
    bool good = true;
    for (const unsigned int width : {16u, 8u, 4u, 1u}) {
        for (const u64 words : lengths) {
            for (const u64 *shape : shapes) {
                good = moves(width, words, shape[0], shape[1], shape[2], shape[3]) && good;
            }
        }
    }
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
