// Moves pieces of blocks from places to places: piece p of slot s begins at pieces[p] + s * stride,
// be it in device memory or in pinned host memory.
//
// A chunk is a part of one piece of one block, and a team of neighbouring threads copies it, word
// beside word. Teams take chunks in turn: chunk after chunk of a piece, piece after piece of a block,
// block after block. So a long piece is shared by all, and short ones share a thread block.
//
// THREADS, LANES and UNROLL are powers of two and come from kernels.py, as does the size of the grid.
// No barrier, no shared memory, nothing between the threads of a warp: every thread is by itself, and
// what it does is the same in whatever order they run. No header is included.

typedef unsigned long long u64;

// Where a piece of a block begins. Its slot is the block's own number where there is no table.
__device__ __forceinline__ u64 place(u64 pieces, u64 stride, u64 slots, u64 piece, u64 block) {
    const u64 slot = slots ? __ldg((const unsigned int *)slots + block) : block;
    return __ldg((const u64 *)pieces + piece) + slot * stride;
}

template <typename Word>
__device__ __forceinline__ void move(u64 from_pieces, u64 from_stride, u64 from_slots, u64 to_pieces,
                                     u64 to_stride, u64 to_slots, u64 blocks, u64 pieces,
                                     u64 piece_bytes) {
    const u64 words = piece_bytes / sizeof(Word);
    // A team is a warp, or the part of one that a short piece needs.
    unsigned int shift = 0;
    while ((1u << shift) < LANES && (1u << shift) < words) ++shift;
    const u64 lanes = 1u << shift;
    const u64 lane = threadIdx.x & (lanes - 1);
    const u64 chunks = (words + lanes * UNROLL - 1) / (lanes * UNROLL);
    const u64 team = (u64)blockIdx.x * (THREADS >> shift) + (threadIdx.x >> shift);
    const u64 teams = (u64)gridDim.x * (THREADS >> shift);

    // Divided once; from then on a turn adds what all the teams take, and carries.
    u64 chunk = team % chunks;
    u64 piece = team / chunks % pieces;
    u64 block = team / chunks / pieces;
    const u64 chunk_turn = teams % chunks;
    const u64 piece_turn = teams / chunks % pieces;
    const u64 block_turn = teams / chunks / pieces;
    while (block < blocks) {
        const Word *from = (const Word *)place(from_pieces, from_stride, from_slots, piece, block);
        Word *to = (Word *)place(to_pieces, to_stride, to_slots, piece, block);
        const u64 first = chunk * (lanes * UNROLL) + lane;
        // All loads are under way before the first store. Each word is used once, so that it had
        // better leave the caches to others: hence the streaming loads and stores.
        Word held[UNROLL];
#pragma unroll
        for (unsigned int i = 0; i < UNROLL; ++i) {
            const u64 word = first + i * lanes;
            if (word < words) held[i] = __ldcs(from + word);
        }
#pragma unroll
        for (unsigned int i = 0; i < UNROLL; ++i) {
            const u64 word = first + i * lanes;
            if (word < words) __stcs(to + word, held[i]);
        }
        chunk += chunk_turn;
        piece += piece_turn;
        block += block_turn;
        if (chunk >= chunks) {
            chunk -= chunks;
            ++piece;
        }
        if (piece >= pieces) {
            piece -= pieces;
            ++block;
        }
    }
}

#ifdef __CUDACC_RTC__
// Keeps its thread blocks where they are for so long: what a copy meets beside a matrix product.
extern "C" __global__ void __launch_bounds__(1024) blockyard_occupy(u64 nanoseconds) {
    u64 begun, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begun < nanoseconds);
}
#endif

#define MOVE(NAME, WORD)                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS)                                           \
        NAME(u64 from_pieces, u64 from_stride, u64 from_slots, u64 to_pieces, u64 to_stride,        \
             u64 to_slots, u64 blocks, u64 pieces, u64 piece_bytes) {                               \
        move<WORD>(from_pieces, from_stride, from_slots, to_pieces, to_stride, to_slots, blocks,    \
                   pieces, piece_bytes);                                                            \
    }

MOVE(blockyard_move16, uint4)
MOVE(blockyard_move8, uint2)
MOVE(blockyard_move4, unsigned int)
MOVE(blockyard_move1, unsigned char)
