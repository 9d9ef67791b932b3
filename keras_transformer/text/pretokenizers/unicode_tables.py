"""Sets of code points, as the `tokenizers` library 0.23.3 has them.

Written by benchmarks/unicode_tables.py. Run lengths in base 36: the numbers of code points outside the set, then
inside it, and so on.
"""

# White space, at which words end.
WHITESPACE = """
9 5 i 1 2s 1 q 1 4bj 1 1vj b t 2 5 1 1b 1 334 1
"""

# Letters of GPT-2's pattern.
LETTERS = """
1t q 6 q 1b 1 a 1 4 1 5 n 1 v 1 cq 4 c e 5 7 1 1 1 3l 5 1 2 2 4 1 1 6 1 1 3 1 1 1 k 1 2b 1 3v 8 4m 1 12 2 1 6
15 1z r 4 4 19 17 z 2 1 2r 1 1 f 2 7 2 a 3 2 1 g 1 1 u t 2h b 1 o x 9 2 4 1 5 m 4 1 9 1 3 1 n p 7 b 5 o 1 6 h
16 1m 1i 3 1 i 1 7 a f g 4 8 2 2 2 m 1 7 1 1 3 4 3 1 g 1 d 2 1 3 e 2 a 1 8 6 4 2 2 m 1 7 1 2 1 2 1 2 v 4 1 1 j
3 g 9 1 3 1 m 1 7 1 2 1 5 3 1 i 1 f 2 n 1 b 8 2 2 2 m 1 7 1 2 1 5 3 1 u 2 1 3 f 1 h 1 1 6 3 3 1 4 3 2 1 1 1 2
3 2 3 3 3 c m 1 1g 8 1 3 1 n 1 g 3 1 q 3 2 1 2 2 u 1 4 8 1 3 1 n 1 a 1 5 3 1 v 2 1 2 f 2 h 9 1 3 1 15 2 1 g 1
5 3 8 3 o 6 5 i 3 o 1 9 1 1 2 7 1m 1c 1 2 c 7 1m 2 1 1 1 5 1 o 1 1 1 a 1 2 9 1 2 5 1 1 l 4 w 1 1r 8 1 10 r 5
37 17 k 1 g 6 4 4 3 1 3 2 7 3 4 d c 1 h 12 1 1 5 1 2 17 1 99 1 4 2 7 1 1 1 4 2 15 1 4 2 x 1 4 2 7 1 1 1 4 2 f
1 1l 1 4 2 1v 11 g g 2e 2 6 3 h8 2 h 1 q 5 23 6 8 7 i d j e i e d 1 3 f 1g z 1 4 1 1v 2h 7 5 2 y 1 1 5 1y a v
1d u 2 5 b 18 4 q 1i n 9 1h 2a 1 2l 1b h 8 1i u d 2 a 18 q 10 15 3 a 10 2 b 5 17 2 3 15 4 1 6 1 2 3 1 5 5c 1s
7q 2 6 2 12 2 6 2 8 1 1 1 1 1 1 1 v 2 1h 1 7 1 1 3 3 1 7 3 4 2 6 4 d 5 3 1 7 38 1 d 1 g d 2t 1 4 1 2 a 1 1 3 5
6 1 1 1 1 1 1 4 1 b 2 4 5 5 4 1 1g 2 22j 6d 6 4 3 2 c 12 1 1 5 1 2 1k 7 1 g n 9 7 1 7 1 7 1 7 1 7 1 7 1 7 1 7
28 1 d1 2 16 5 5 2 4 2e 6 3 1 2i 1 4 5 17 1 2m h w 1c g e8 534 1s h3h 1v 1a 2 7h 3 g a 2 k 1b g v 2 1y 1d 9 2
2v 2 1v 2 2 1 1 1 8 l g 1 3 1 4 1 n t 1g e 1e 1q 6 3 1 1 2 b s a n p t 7 1b s 1 g 5 1 a a 5 1 15 n 3 1 8 k n 3
1 3 1e 1 1 3 2 2 5 2 1 1 1 o 3 2 b 7 3 c 6 2 6 2 6 9 7 1 7 1 17 1 e 6 37 t 8mc c n 4 1d 6is a6 2 2y 12 7 c 5 5
1 1 a 1 d 1 5 1 1 1 2 1 2 1 30 x a3 i 1s 2 1i 14 c 38 5 1 3r 10 q 6 q b 2h 3 6 2 6 2 6 2 3 z c 1 q 1 j 1 2 1 f
2 e y 3f at t 3 1d 1b w d k 1 8 6 12 a u 2 10 4 8 1c 4e i 10 4 10 4 14 8 1g c b 1 f 1 7 1 2 1 b 1 f 1 7 1 2 3
1g c 8n 9 m a 8 o 6 1 16 1 9 1x 6 2 1 1 18 1 2 3 1 2 n a n 9 v 1t j 1 2 a m a q 1y 1k 6 2 1s 1 f 4 1 3 1 t 16
t 3 t z 8 1 s r 1i a m a j d i 32 21 1j 1f d 1f d 10 12 s 9 n 6y 16 6 2 g 3 1n t a 1 8 m 16 i 1a l r n c 1h 1l
2 2 1 d 19 w p q 10 t 1 2 1 8 z 3 1 c 1c e 4 l 1 1 1 z i 1 p j 2 1r 7 1 1 1 4 1 f 1 a 7 1b 12 8 2 2 2 m 1 7 1
2 1 5 3 1 i 1 c 5 u a 1 1 2 1 1 12 1 1 p 1 1 1 18 1h i 4 k 3 u 1c k 2 1 1 54 1b 15 4 10 1c k 1 1n 17 d 1 1z r
11 7 55 18 38 1s v 8 2 1 2 8 1 2 1 o f 1 1 1 2m 8 2 13 g 1 1 1 s 1 a 14 7 1 l 1 b 1a j 1 i 21 5j x v 9 1 11 h
1 1d u 34 7 1 2 1 12 l 1 p 6 1 2 1 w e 1 93 j f 1 1 d 1 y 3g 1 27 pm 6e 5g 218 2p f ts h 6 p 32z 5 g7 5a1 u
1cy ft 7 v h 27 h u i 1c g 4 v l 5 j c0 19 5v 1s 3k 23 5 1 1u d 1s 2 1 1 s 4qg 8 ye 15 a 6w7 4 1 7 1 2 1 83 f
1 t 3 2 1 e 4 8 b0 1s4 2z 5 d 3 9 7 a 4me 2d 1 1z 1 2 2 1 2 2 2 4 1 c 1 1 1 7 1 1t 1 4 2 8 1 7 1 s 1 4 1 5 1 1
3 7 1 9g 2 p 1 p 1 v 1 p 1 v 1 p 1 v 1 p 1 v 1 p 1 8 1f8 v 6 6 79 1q 42 19 a 7 g 1 8x u i 18 dg s 6c u 2 1 dr
7 1 4 1 2 1 f 1 5h 1n 1w 7 1 xg 4 1 r 1 2 1 1 2 1 1 a 1 4 1 1 1 1 6 1 4 1 1 1 1 1 1 3 1 2 1 1 2 1 1 1 1 1 1 1
1 1 1 2 1 1 2 4 1 7 1 4 1 4 1 1 1 a 1 h 5 3 1 5 1 h 3es wyo w 37e 6 66 2 4g2 e 5rl f ha 1wi f2 15u 3t7 5 38g
"""

# Numbers of GPT-2's pattern.
NUMBERS = """
1c a 3c 2 5 1 2 3 141 a 3q a 5i a bg a 3a a 4 6 30 a 3a a 3a a 2 6 32 d 37 a 8 7 2v a 2w 7 7 j 31 a 2o a 3a a
1y k 7g a 1y a jz k oh 3 6n a 6 a m a 8c a 3k b 4l a 6 a 52 a 2e a 3q a 6 a t2 1 3 6 6 a 5i 1f 2 5 k6 1o 26 m
hi u 12h 1 ll 1 p 9 e 3 9j 4 3u a u 8 1 f w a 13 f msg a 58 a 8w 6 4a a 12 a 5i a m a 2e a ba a geu a dp 19 c
1l h 2 9h r 10 4 t 1 8 1 3q 5 5m a q6 8 p 7 13 9 23 5 m 6 4g 2 2 g 2 1a 1s 9 1g 2 u 3 23 5 2w 8 o 8 15 7 96 6
1c a 6 a 7q v 4e a 16 4 34 7 3q u 3k a 1o a 40 a 7 k 6z a 9i a 3a a ae a 2u a 6 k 24 c bo j 2l a ie a 2e t 6b
a 1y a bq a 2u l tn 33 c01 a 1t2 a 2e a 3q a 1 7 em a 7a n imx a 152 k c k 30 p ut 1e 1ts a bq a dy a 6v a jw
9 3k a lz 1n 1 3 1 4 24 19 1 f qq d 25f a
"""

# Punctuation in BERT: each character is a word.
PUNCTUATION = """
x f a 7 q 6 q 4 y 1 5 1 3 1 a 2 3 1 3 1 ji 1 8 1 cy 6 15 2 1f 1 1 1 2 1 2 1 18 2 k 2 1 2 d 1 2 2 22 4 2u 1 17
e 6h 3 1i f v 1 79 2 a 1 an 1 lf 1 2i 1 a 2 4o f 1 1 11 4 1z 1 22 5 4 2 33 6 4r 1 h0 9 47 1 h8 2 18 2 26 3 1z
2 4d 3 1 3 11 b 8p 2 60 2 3k 7 1 6 4s 7 4b 4 1n 5 1q 2 1s 8 b 1 n0 o 8 k 1 d 1 c u 2 e 2 hl 4 t 2 u5 e 27 2 v
a b7 m 1r 4 w 2 l7 4 1 2 34 1 3z 1b 1 j ce 3 4 a 2 c g 1 c 1 2q 1 2i 1 mwy 2 7h 3 2r 1 a 1 37 6 ak 4 2e 2 14 3
1 1 1d 2 1b 1 2p d g 2 3g 4 3i 2 g 2 6x 1 g2a 2 5s a m z 1 e 1 1 4 1 1 2 45 3 1 6 1 4 a 2 3 2 q 3 1 1 r 1 1 1
1 7 be 3 ik 1 1c 1 bi 1 kn 1 5j 1 v 1 7k 9 12 1 34 7 1u 7 2h 4 x6 7 31 2 1 4 3i 4 1c 2 27 5 3 1 d 1 1 3 2g 6
2z 1 f0 1 6y n 2x 3 6w 3 2lt 5 dtl 2 3p 1 1t 5 8 1 g2i 1 5wn 5
"""

# Characters that BERT removes: control and private characters, U+0000 and U+FFFD.
REMOVED = """
0 9 2 2 1 i 2n x d 1 11u 6 m 1 5c 1 1d 1 3cu 1 1ks 5 q 5 1d 5 1 a 11u8 4xs 16n 1 6x 3 1 1 3b3 1 xya 4 43z 8
h406 1 u 2o 1egw 1eke 2 1eke
"""

# Chinese characters in BERT: each is a word.
IDEOGRAPHS = """
a9s 534 1s g74 hkw e8 1fk0 wyo w 3ds 74 49c 85s f4
"""

# Characters with a canonical decomposition.
DECOMPOSED = """
5c 6 1 9 1 6 2 5 2 6 1 9 1 6 2 5 1 h 2 k 2 9 3 4 1 6 4 6 3 6 2 i 2 n x 2 d 2 s g 1 6 2 b 3 2 2 10 2 2 6 e 7g 2
1 2 1b 1 9 1 6 6 1 1 1 3 p 7 p 5 4 2 17 2 1 1 3 1 4 3 a 1 v 1 m 2 1 1 3 1 4 3 n 2 21 2 d 4 2 2 2 6 2 6 2 c 2 2
88 5 49 1 1 1 g 1 gl 1 7 1 2 1 z 8 2z 2 f 2 1 1 2b 1 2 1 y 3 2 1 6h 1 2 2 f 2 1i 1 1h 3 3f 1 3b 1 6 2 1 2 3i 3
3x 1 1 3 9w 1 9 1 4 1 4 1 4 1 c 1 9 1 1 2 1 1 8 1 h 1 9 1 4 1 4 1 4 1 c 1 30 1 25b 1 1 1 1 1 1 1 1 1 3 1 14 1
1 1 2 2 1 1 jg 4a 1 1 4 2i 6 m 2 6 2 12 2 6 2 8 1 1 1 1 1 1 1 v 2 1h 1 7 1 1 2 4 1 e 2 6 1 j 2 3 1 8 2 2 84 1
3 2 32 2 i 1 u 3 1g 1 4 1 2 1 n 1 1 1 q 1 2 1 2 1 1 1 m 1 1 1 a 5 2 2 2 2 6 2 2 2 2 2 y 4 1c 4 6 4 1n 2 1ip 1
12n 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 2 1 1 1 1 1 6 2 1 2 1 2 1 2 1 2 m 1 9 1 d 1 1 1 1 1 1 1 1 1
1 1 1 1 1 1 1 1 1 1 1 1 1 1 2 1 1 1 1 1 6 2 1 2 1 2 1 2 1 2 m 1 2 4 3 1 oap 8mc 6l8 7i 2 1 1 1 2 a 1 1 1 1 2 2
3 1w 2 2y 1v 1 1 1 a d 1 5 1 1 1 2 1 2 1 9 47f 1 1 1 e 1 3m 2 ez 2 a6 2 1 1 6z 2 112a 7 2e 6 1m4f f2
"""

# The nonspacing marks that BERT strips after decomposition.
ACCENTS = """
lc 34 7n 5 7d 19 1 1 1 2 1 2 1 1 20 b 1c l g 1 2t 7 2 6 2 2 1 4 z 1 u r 2j b 1m 9 y 4 1 9 1 3 1 5 17 3 3r w 1j
1 1 1 4 8 4 1 3 7 a 2 t 1 1m 1 4 4 8 1 k 2 t 2 1l 1 4 2 4 2 2 3 3 1 u 2 3 1 b 2 1l 1 4 5 1 2 4 1 k 2 t 1 1m 1
2 1 1 4 8 1 8 1 b 2 u 1 1p 1 c 1 1e 1 1p 3 5 3 1 4 7 2 b 2 t 1 1m 1 2 1 6 1 5 2 k 2 t 1 1r 4 8 1 k 2 2u 1 7 3
1 1 2i 1 2 7 c 8 2q 1 2 6 1 2 b 6 22 2 r 1 1 1 1 1 1j e 1 5 1 2 5 b 1 10 9 1 2u 4 1 6 1 2 2 2 p 2 4 3 g 4 d 1
2 2 6 1 f 1 jj 3 qa 3 t 3 t 2 u 2 1s 2 1 7 8 1 2 b 9 1 19 3 4b 1 3a 3 4 2 9 1 6 3 63 2 2 1 1m 1 1 7 1 1 1 1 2
8 6 a 2 1 1c e 1u 4 1c 1 1 5 1 1 5 1 14 9 c 2 w 4 2 2 1 3 1k 1 1 2 3 1 1 3 1m 8 2 2 48 3 1 d 1 7 4 1 6 1 3 2
5i 1i 6 4 k0 d 4 1 3 c 2da 3 3x 1 2o w fe 4 2z 2 n9w 1 4 a w 2 28 2 7k 1 3 1 4 1 p 2 4d 1 r i 1g 8 p b 1a 3 1c
1 2 4 2 1 14 1 1v 6 2 2 2 2 c 1 8 1 1b 1 1f 1 1 3 2 2 5 2 1 1 16 2 8 1 6m 1 2 1 4 1 fn4 1 kh g g g r1 1 6a 1
45 5 1ae 3 1 2 5 4 14 3 4 1 4l 2 10a 1 1i f 1k 3 1d 4 2 2 1x 3 10 5 1 8 1q 1 c 2 1g 9 b 3 2q 3 2 1 1 2 4n 1 3
8 l 2 1m 1 3 1 11 7 3 5 8u 6 1 1 4 2 1 2 6m 4 6 2 1 2 r 2 2d 8 2 1 1 2 2y 1 1 1 2 6 1 1 2t 3 2 4 1 5 gjo 5 1n
7 uw 4 f7u 2 43s 3 h 8 2 7 u 4 44 3 1iz 1j 4 1e 8 1 e 1 m 5 1 f 2sg 7 gzl5 6o
"""

# Characters with a combining class, which are reordered in a decomposition.
COMBINING = """
lc 27 1 w 7n 5 7d 19 1 1 1 2 1 2 1 1 20 b 1c l g 1 2t 7 2 6 2 2 1 4 z 1 u r 4g 9 y 4 1 9 1 3 1 5 17 3 3c e 1 t
1o 1 g 1 3 4 2v 1 g 1 32 1 g 1 32 1 g 1 32 1 g 1 3j 1 3j 1 7 2 2t 1 g 1 3j 1 3g 1 31 3 d 4 30 2 e 4 24 2 r 1 1
1 1 1 1j 2 1 1 5 4 2 1 1 3 1 2 1q 1 34 1 1 2 2a 1 jz 3 qc 1 v 1 4d 1 a 1 5n 1 3z 3 63 2 1z 1 k 8 2 1 1c e 3a 1
f 1 12 9 1i 2 1m 1 b 2 1v 1 48 3 1 d 1 7 4 1 6 1 3 2 5i 1i 5 5 k0 d 4 1 3 c 2da 3 3x 1 2o w fe 6 2x 2 n9w 1 4
a w 2 28 2 7o 1 59 1 r i 1l 3 11 1 2n 1 c 1 6n 1 1 3 2 2 5 2 1 1 1g 1 6u 1 fn4 1 ld g r1 1 6a 1 45 5 1aq 1 1 1
14 3 4 1 4l 2 127 1 1k 1 1l 2 1x 3 1c 2 1q 1 24 1 9 1 2y 2 4y 2 29 1 g 1 o 7 3 5 5p 1 3 1 3f 2 6z 2 3i 1 3a 2
37 1 103 1 fjk 5 1n 7 g2v 1 43q 5 3 6 8 8 2 7 u 4 44 3 2pn 7 1 h 2 7 1 2 1 5 1ph 7 31 7
"""

# Start, count, step and offset of each run of upper-case letters.
LOWER = """
1t q 1 w 5c n 1 w 60 7 1 w 74 o 2 1 8i 3 2 1 8p 8 2 1 96 n 2 1 ag 1 1 -3d ah 3 2 1 ap 1 1 5u aq 2 2 1 au 1 1
5q av 1 1 1 ax 2 1 5p az 1 1 1 b2 1 1 27 b3 1 1 5m b4 1 1 5n b5 1 1 1 b7 1 1 5p b8 1 1 5r ba 1 1 5v bb 1 1 5t
bc 1 1 1 bg 1 1 5v bh 1 1 5x bj 1 1 5y bk 3 2 1 bq 1 1 62 br 1 1 1 bt 1 1 62 bw 1 1 1 by 1 1 62 bz 1 1 1 c1 2
1 61 c3 2 2 1 c7 1 1 63 c8 1 1 1 cc 1 1 1 ck 1 1 2 cl 1 1 1 cn 1 1 2 co 1 1 1 cq 1 1 2 cr 9 2 1 da 9 2 1 dt 1
1 2 du 2 2 1 dy 1 1 -2p dz 1 1 -1k e0 k 2 1 f4 1 1 -3m f6 9 2 1 fu 1 1 8bv fv 1 1 1 fx 1 1 -4j fy 1 1 8bs g1 1
1 1 g3 1 1 -5f g4 1 1 1x g5 1 1 1z g6 5 2 1 og 2 2 1 om 1 1 1 ov 1 1 38 p2 1 1 12 p4 3 1 11 p8 1 1 1s pa 2 1
1r pd h 1 w pv 9 1 w r3 1 1 8 rc c 2 1 s4 1 1 -1o s7 1 1 1 s9 1 1 -7 sa 1 1 1 sd 3 1 -3m sg g 1 28 sw w 1 w v4
h 2 1 wa r 2 1 xs 1 1 f xt 7 2 1 y8 1c 2 1 10x 12 1 1c 3a8 12 1 5ls 3bb 1 1 5ls 3bh 1 1 5ls 3vk 28 1 tzk 3xs 6
1 8 5mx 1 1 1 5n4 17 1 -2bk 5od 3 1 -2bk 5xc 23 2 1 61q 1 1 -5vj 61s 1c 2 1 64o 8 1 -8 654 6 1 -8 65k 8 1 -8
660 8 1 -8 66g 6 1 -8 66x 4 2 -8 67c 8 1 -8 688 8 1 -8 68o 8 1 -8 694 8 1 -8 69k 2 1 -8 69m 2 1 -22 69o 1 1 -9
6a0 4 1 -2e 6a4 1 1 -9 6ag 2 1 -8 6ai 2 1 -2s 6aw 2 1 -8 6ay 2 1 -34 6b0 1 1 -7 6bc 2 1 -3k 6be 2 1 -3i 6bg 1
1 -9 6jq 1 1 -5st 6ju 1 1 -6gv 6jv 1 1 -6di 6k2 1 1 s 6lc g 1 g 6mb 1 1 1 792 q 1 q 8ow 1c 1 1c 8rk 1 1 1 8rm
1 1 -8af 8rn 1 1 -2xy 8ro 1 1 -89z 8rr 3 2 1 8rx 1 1 -8bg 8ry 1 1 -8al 8rz 1 1 -8bj 8s0 1 1 -8bi 8s2 1 1 1 8s5
1 1 1 8se 2 1 -8cf 8sg 1e 2 1 8vf 2 2 1 8vm 1 1 1 wu8 n 2 1 ww0 e 2 1 x0i 7 2 1 x0y v 2 1 x2x 2 2 1 x31 1 1
-r9g x32 5 2 1 x3f 1 1 1 x3h 1 1 -wmg x3k 2 2 1 x3q a 2 1 x4a 1 1 -wn8 x4b 1 1 -wnj x4c 1 1 -wnf x4d 1 1 -wn5
x4e 1 1 -wn8 x4g 1 1 -wlu x4h 1 1 -wmi x4i 1 1 -wlx x4j 1 1 ps x4k 8 2 1 x50 1 1 -1c x51 1 1 -wn7 x52 1 1 -raw
x53 2 2 1 x57 1 1 -wo7 x58 8 2 1 x5o 1 1 -wu9 x6d 1 1 1 1ee9 q 1 w 1fcw 14 1 14 1fhs 10 1 14 1fn4 b 1 13 1fng
f 1 13 1fnw 7 1 13 1fo4 2 1 13 1h1c 1f 1 1s 1h74 m 1 w 1jfk w 1 w 20cg w 1 w 20f4 p 1 r 2olc y 1 y
"""
